"""The text of kernels and programs: a person can read it, it comes back equal, and bad text says where it is bad."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_samples import Builder, chain, dense, diamond, layer_norm, softmax
from mlc_strategies import Config, Palette, build

import mlc
from mlc.codegen.target import get_target
from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.dims import TensorType
from mlc.core.errors import ParseError, VerifyError
from mlc.core.text import Reader
from mlc.kernel.interp import run_program
from mlc.kernel.ir import Bind, Dot, Kernel, KernelGraph, Param, Put, Reduce, Stage, Step, Value
from mlc.kernel.program_text import parse_kernel_graph, print_kernel_graph
from mlc.kernel.schedule import Schedule, StageSchedule, TileSchedule, parse_schedule
from mlc.kernel.text import parse_kernel, print_kernel
from mlc.ops.base import REGISTRY
from mlc.passes.kernelize import partition
from mlc.stages import Stages

GOALS = [(op.name, dtype) for op in REGISTRY.values() if op.name != "parameter" for dtype in op.dtypes]
random.Random(0).shuffle(GOALS)

EVERYTHING = """\
kernel @every_thing(%x: f32[64] in, %w: i32[32] in, %y: f32[32] out, %z: f32[8] out, %s: f32[8] scratch) alias(%w %y) alias(%x %y) rows i0:4 i1:2 {
  stage over j0:8 {
    %0 = mul %x[16*i0 + 8*i1 + j0], 0.5 : f32
    reduce %best: f32, %at: i64 = -inf, 0 with %0, j0 {
      %0 = gt %b.0, %a.0 : bool
      %1 = select %0, %b.0, %a.0 : f32
      %2 = select %0, %b.1, %a.1 : i64
      yield %1, %2
    }
    reduce %total: f32 = 0.0 with %0 {
      %0 = add %a.0, %b.0 : f32
      yield %0
    }
    %s[j0] = %0
  } then {
    %0 = convert %at : f32
    %1 = mul %best, %0 : f32
    let %t0 = %1
    let %t1 = %total
    %z[2*i0 + i1] = %1
  }
  stage then {
    let %one = 1<i32>
  }
  stage j0:2 over j1:2 {
    reduce %r: f32 = 1.0 with 2.0 {
      yield %b.0
    }
  } then {
    %s[j0] = %r
  }
  stage {
  }
  dot %acc: f32 m:2 n=cols:2 k:2 {
    %0 = convert %w[2*cols + k] : f32
    %acc += %s[2*m + k] * %0
  } then {
    %0 = convert %one : f32
    %1 = mul %t0, %0 : f32
    %2 = add %acc, %1 : f32
    %y[8*i0 + 4*i1 + 2*m + cols] = %2
  }
} schedule { vectorize j0:16, serial, vectorize j1:8, serial:4, tile m:2 n:2 k:1024 by 16, chunk 64 }
"""


def load(name, dtype, offset=0, **steps):
    return ex.make("load", dtype, (), (name, Affine(offset, steps)))


def everything() -> tuple[Kernel, Schedule]:
    a, b = (ex.var(f"{side}.0", dt.f32) for side in "ab")
    best, at, total, acc, one = (ex.var(n, t) for n, t in (("best", dt.f32), ("at", dt.i64), ("total", dt.f32), ("acc", dt.f32), ("one", dt.i32)))
    half, greater = load("x", dt.f32, i0=16, i1=8, j0=1) * 0.5, ex.binary("gt", b, a)
    positions = ex.select(greater, ex.var("b.1", dt.i64), ex.var("a.1", dt.i64))
    argmax = Reduce(("best", "at"), (dt.f32, dt.i64), (ex.const(-np.inf, dt.f32), ex.const(0, dt.i64)), (half, ex.index("j0")),
                    (ex.select(greater, b, a), positions))
    totals = Reduce(("total",), (dt.f32,), (ex.const(0, dt.f32),), (half,), (a + b,))
    scaled = best * ex.convert(at, dt.f32)
    last = Reduce(("r",), (dt.f32,), (ex.const(1, dt.f32),), (ex.const(2, dt.f32),), (b,))
    stages = (
        Stage((), (("j0", 8),), (argmax, totals), (Put("s", Affine(0, {"j0": 1}), half),),
              (Bind("t0", scaled), Bind("t1", total), Put("z", Affine(0, {"i0": 2, "i1": 1}), scaled))),
        Stage((), finish=(Bind("one", ex.const(1, dt.i32)),)),
        Stage((("j0", 2),), (("j1", 2),), (last,), (), (Put("s", Affine(0, {"j0": 1}), ex.var("r", dt.f32)),)),
        Stage(()),
        Dot("acc", dt.f32, ("m", 2), ("cols", 2), ("k", 2), load("s", dt.f32, m=2, k=1), ex.convert(load("w", dt.i32, cols=2, k=1), dt.f32),
            (Put("y", Affine(0, {"i0": 8, "i1": 4, "m": 2, "cols": 1}), acc + ex.var("t0", dt.f32) * ex.convert(one, dt.f32)),)))
    params = (Param("x", TensorType((64,), dt.f32), "in"), Param("w", TensorType((32,), dt.i32), "in"), Param("y", TensorType((32,), dt.f32), "out"),
              Param("z", TensorType((8,), dt.f32), "out"), Param("s", TensorType((8,), dt.f32), "scratch"))
    kernel = Kernel("every_thing", params, (("i0", 4), ("i1", 2)), stages, frozenset({("x", "y"), ("w", "y")}))
    plans = (StageSchedule("j0", 16), StageSchedule("", 1), StageSchedule("j1", 8), StageSchedule("", 4), TileSchedule(2, 2, 16))
    return kernel, Schedule(plans)


PROGRAM = """\
program @two {
  %x: f32[4] input node 0
  %c.1: f32[4] constant node 3
  %t.5: f32[4] temp node 5
  %out.0: f32[2,2] output node 7

  %t.5 = @add#0(%x, %c.1) : f32[4]
  %out.0 = @add#0(%t.5, %t.5) : f32[2,2]
  return %out.0
}

kernel @add#0(%a0: f32[4] in, %a1: f32[4] in, %o0: f32[4] out) alias(%a0 %o0) {
  stage j0:4 {
    %0 = add %a0[j0], %a1[j0] : f32
    %o0[j0] = %0
  }
} schedule { vectorize j0:16, chunk 64 }

refused fusions
  %5 -> %7 (dot_general): the kernels have "different" loop structures; %5 costs 3.1x
"""


def two_steps() -> tuple[KernelGraph, dict[Kernel, Schedule]]:
    flat, at = TensorType((4,), dt.f32), Affine(0, {"j0": 1})
    stage = Stage((("j0", 4),), puts=(Put("o0", at, load("a0", dt.f32, j0=1) + load("a1", dt.f32, j0=1)),))
    kernel = Kernel("add", (Param("a0", flat, "in"), Param("a1", flat, "in"), Param("o0", flat, "out")), (), (stage,), frozenset({("a0", "o0")}))
    values = [Value("x", flat, "input", 0), Value("c.1", flat, "constant", 3), Value("t.5", flat, "temp", 5),
              Value("out.0", TensorType((2, 2), dt.f32), "output", 7)]
    note = '%5 -> %7 (dot_general): the kernels have "different" loop structures; %5 costs 3.1x'
    program = KernelGraph("two", {v.name: v for v in values}, [Step(kernel, ("x", "c.1", "t.5")), Step(kernel, ("t.5", "t.5", "out.0"))],
                          ("x",), ("out.0",), ("c.1",), [note])
    return program, {kernel: Schedule((StageSchedule("j0", 16),))}


# --------------------------------------------------------------------------- what it looks like
def test_a_kernel_with_everything():
    kernel, schedule = everything()
    assert print_kernel(kernel, schedule) == EVERYTHING
    assert parse_kernel(EVERYTHING) == (kernel, schedule)
    assert parse_kernel(print_kernel(kernel)) == (kernel, None)


def test_a_program_with_everything():
    program, schedules = two_steps()
    assert print_kernel_graph(program, schedules) == PROGRAM
    assert parse_kernel_graph(PROGRAM) == (program, schedules)
    plain = print_kernel_graph(program)
    assert "schedule" not in plain and parse_kernel_graph(plain) == (program, {})


def test_a_softmax_reads_as_three_stages():
    text = print_kernel(partition(softmax(8, 37)).steps[0].kernel)
    lines = text.splitlines()
    assert lines[0] == "kernel @max_exp_sum_div(%a0: f32[296] in, %o0: f32[296] out, %s0: f32[37] scratch) rows i0:8 {"
    assert lines[1:9] == [
        "  stage over j0:37 {", "    reduce %t0: f32 = -inf with %a0[37*i0 + j0] {", "      %0 = max %a.0, %b.0 : f32", "      yield %0", "    }",
        "  } then {", "    let %t1 = %t0", "  }"]
    assert lines[-5:] == ["  stage j0:37 {", "    %0 = div %s0[j0], %t3 : f32", "    %o0[37*i0 + j0] = %0", "  }", "}"]


def test_comments_and_line_breaks_are_free():
    kernel, schedule = everything()
    spread = EVERYTHING.replace("\n", "\n; a remark { } %x\n\n").replace(" rows", "\n\t rows")
    assert parse_kernel(spread) == (kernel, schedule)


# --------------------------------------------------------------------------- every program comes back
def assert_comes_back(graph, target="golden-v3"):
    stages = Stages(graph, get_target(target))
    program, schedules = stages.kernels, stages.schedules
    text = stages.text("kernels")
    again, read_schedules = parse_kernel_graph(text)
    assert again == program and read_schedules == schedules
    # Whoever goes through a program's values (the memory plan does) finds them in the same order.
    assert list(again.values) == list(program.values) and again.notes == program.notes
    assert print_kernel_graph(again, read_schedules) == text
    for kernel in program.kernels():
        assert parse_kernel(print_kernel(kernel, schedules[kernel])) == (kernel, schedules[kernel])
    return text


@pytest.mark.parametrize("graph", [softmax(), layer_norm(), dense(), chain(300), diamond(30)], ids=lambda graph: graph.name)
def test_samples_come_back(graph):
    assert_comes_back(graph)
    with mlc.options(disable_passes="fuse"):
        assert_comes_back(graph, "generic")


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_generated_programs_come_back(start):
    for seed in range(start, start + 40):
        program = build(random.Random(seed), Config(Palette.number(seed // 60), goal=GOALS[seed % len(GOALS)], special=seed % 3 == 0))
        with mlc.options(disable_passes="" if seed % 2 else "simplify,fold,cse,dce,motion"):
            assert_comes_back(program.graph)


@pytest.mark.nightly
def test_many_generated_programs_come_back():
    for seed in range(1000, 2500):
        program = build(random.Random(seed), Config(Palette.number(seed // 60), goal=GOALS[seed % len(GOALS)], special=seed % 3 == 0))
        assert_comes_back(program.graph, ("native", "generic", "golden-v3")[seed % 3])


def test_a_program_can_be_run_from_its_text():
    graph = softmax(8, 37)
    stages = Stages(graph, get_target("golden-v3"))
    program, schedules = parse_kernel_graph(stages.text("kernels"))
    x = np.random.default_rng(0).normal(size=(8, 37)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(run_program(program, schedules, [x], {})[0], e / e.sum(1, keepdims=True), rtol=1e-6)


def test_short_rows_as_lanes_come_back():
    g = Builder("short_rows")
    text = assert_comes_back(g.set_outputs([g.fold("reduce_sum", g.input("x", 40, 3), 1)]))
    assert "schedule { vectorize rows i0:8, serial, chunk 64 }" in text


def test_outputs_repeated_constants_copies_and_refusals_come_back():
    g = Builder("views")
    x, w = g.input("x", 4, 4), g.input("w", 4, 4)
    c = g.constant(np.arange(20, dtype=np.float32))
    y = g.matmul(x, w)
    sums = g.fold("reduce_sum", y, 1)
    text = assert_comes_back(g.set_outputs([x, c, y, y, sums]))
    assert "f32[20] constant node" in text and "@copy#" in text and text.count("refused fusions\n  %") == 1
    assert "return %out.0, %out.1, %out.2, %out.3, %out.4" in text


def test_programs_without_steps_values_or_outputs_come_back():
    for program in (KernelGraph("nothing"), KernelGraph("unused", {"x": Value("x", TensorType((3,), dt.bool_), "input", 0)}, [], ("x",)),
                    KernelGraph("notes", notes=["", "  indented", "; a remark", "refused fusions", "\u2028"])):
        assert parse_kernel_graph(print_kernel_graph(program)) == (program, {})


def test_text_does_not_depend_on_the_hash_seed():
    script = ("import sys; sys.path.insert(0, 'tests/kernel'); from kernel_samples import *; from mlc.codegen.target import get_target\n"
              "from mlc.stages import Stages; print(Stages(diamond(5), get_target('golden-v3')).text('kernels'))\n"
              "from test_kernel_text import everything, print_kernel; print(print_kernel(*everything()))")
    root = Path(__file__).parents[2]
    texts = {subprocess.run([sys.executable, "-c", script], cwd=root, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
                            timeout=120, check=True).stdout for seed in ("1", "2")}
    assert len(texts) == 1 and EVERYTHING in texts.pop()


def test_text_that_loses_something_is_noticed_at_check_level_2(monkeypatch):
    import mlc.kernel.schedule
    monkeypatch.setattr(mlc.kernel.schedule.TileSchedule, "text", lambda self: "tile m:1 n:1 k:1024 by 1")
    with mlc.options(check=1):
        assert Stages(dense(), get_target("golden-v3")).kernels
    with mlc.options(check=2), pytest.raises(VerifyError, match="text_round_trips after fuse at program @dense") as caught:
        _ = Stages(dense(), get_target("golden-v3")).kernels
    assert "kernel @dot_general_max#0" in caught.value.found


# --------------------------------------------------------------------------- odd kernels
WORDS = ("over", "rows", "then", "stage", "dot", "m", "k", "chunk", "tile", "by", "let", "f32", "kernel", "j0", "info")


def random_kernel(rng: random.Random) -> tuple[Kernel, Schedule]:
    """Well formed as data, but not a kernel that any verifier would accept; names are words of the notation."""
    params = tuple(Param(f"p{k}", TensorType((rng.randint(0, 99),), rng.choice(dt.ALL)), rng.choice(("in", "out", "scratch"))) for k in range(5))

    def axes():
        return tuple((rng.choice(WORDS), rng.randint(-1, 9)) for _ in range(rng.randint(0, 2)))

    def index():
        return Affine(rng.randint(-9, 9), {rng.choice(WORDS): rng.randint(-9, 9)})

    def value():
        made = [ex.index(rng.choice(WORDS)), ex.var(rng.choice(WORDS), rng.choice(dt.ALL)), ex.const(rng.randint(0, 1), rng.choice(dt.ALL))]
        made += [ex.make("load", rng.choice((p.type.dtype, dt.f32)), (), (p.name, index())) for p in params]
        for _ in range(rng.randint(0, 6)):
            made.append(ex.make(rng.choice(("add", "lt", "convert", "nonsense")), rng.choice(dt.ALL), tuple(rng.choice(made) for _ in range(2))))
        return rng.choice(made)

    def put():
        return Put(rng.choice(params).name, index(), value())

    def reduce():
        count = rng.randint(1, 3)
        names, types = tuple(rng.choice(WORDS) for _ in range(count)), tuple(rng.choice(dt.ALL) for _ in range(count))
        return Reduce(names, types, *(tuple(value() for _ in range(count)) for _ in range(3)))

    def some(make):
        return tuple(make() for _ in range(rng.randint(0, 2)))

    def stage():
        if rng.random() < 0.3:
            m, n, k = ((rng.choice(WORDS), rng.randint(0, 9)) for _ in range(3))
            return Dot(rng.choice(WORDS), rng.choice(dt.ALL), m, n, k, value(), value(), some(put))
        return Stage(axes(), axes(), some(reduce), some(put), some(lambda: put() if rng.random() < 0.5 else Bind(rng.choice(WORDS), value())))

    stages = tuple(stage() for _ in range(rng.randint(0, 4)))
    plans = tuple(rng.choice((TileSchedule(rng.randint(0, 9), 48, 16), StageSchedule("", rng.randint(1, 4)), StageSchedule(rng.choice(WORDS), 8)))
                  for _ in stages)
    aliases = frozenset((rng.choice(params).name, rng.choice(params).name) for _ in range(rng.randint(0, 3)))
    rows = (rng.choice(WORDS), rng.randint(1, 16)) if rng.random() < 0.5 else ("", 1)
    return Kernel(rng.choice(("k", "a-b.c#7")), params[:rng.randint(0, 5)], axes(), stages, aliases), Schedule(plans, *rows)


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_kernels_that_no_verifier_would_accept_come_back(start):
    for seed in range(start, start + 100):
        kernel, schedule = random_kernel(random.Random(seed))
        text = print_kernel(kernel, schedule)
        assert parse_kernel(text) == (kernel, schedule), text
        assert print_kernel(*parse_kernel(text)) == text
        assert parse_schedule(schedule.text()) == schedule


@pytest.mark.parametrize("text,schedule", [
    ("schedule { chunk 64 }", Schedule(())),
    ("schedule { serial, vectorize j0:32, chunk 64 }", Schedule((StageSchedule("", 1), StageSchedule("j0", 32)))),
    ("schedule { vectorize rows i2:16, serial, chunk 64 }", Schedule((StageSchedule("", 1),), "i2", 16)),
    ("schedule { parallel i0:8, vectorize rows i2:16, serial, chunk 64 }", Schedule((StageSchedule("", 1),), "i2", 16, (("i0", 8),))),
    ("schedule { parallel none j0:64, serial, vectorize j0:8, chunk 64 }",
     Schedule((StageSchedule("", 1), StageSchedule("j0", 8)), parallel=(("", 0), ("j0", 64)))),
    ("schedule { parallel none:8 rows:1, serial, serial, chunk 64 }",
     Schedule((StageSchedule("", 1), StageSchedule("", 1)), parallel=(("none", 8), ("rows", 1)))),
    ("schedule { vectorize rows:16, chunk 64 }", Schedule((StageSchedule("rows", 16),))),
    ("schedule { tile m:8 n:48 k:1024 by 16, chunk 64 }", Schedule((TileSchedule(8, 48, 16),))),
    ("schedule { tile m:8 n:48 k:1024 by 16 pack b group 3 staged, chunk 64 }", Schedule((TileSchedule(8, 48, 16, 0, "b", True, group=3),)))])
def test_schedules_come_back(text, schedule):
    assert schedule.text() == text and parse_schedule(text) == schedule


# --------------------------------------------------------------------------- what is refused
def put_at(name="j0", target="o0", value=None, **steps):
    return Stage(((name, 4),), puts=(Put(target, Affine(0, steps or {"j0": 1}), value or ex.const(0, dt.f32)),))


@pytest.mark.parametrize("change", [
    {"name": "two words"}, {"name": ""}, {"rows": (("3i", 2),)}, {"stages": (put_at("true"),)}, {"stages": (put_at(target="o-0"),)},
    {"stages": (put_at(nan=1),)}, {"stages": (put_at(value=ex.var("a b", dt.f32)),)}, {"stages": (put_at(value=ex.arg(0, dt.f32)),)},
    {"params": (Param("", TensorType((4,), dt.f32), "in"),)}, {"params": (Param("o0", TensorType((4,), dt.f32), "inout"),)},
    {"may_alias": frozenset({("a 0", "o0")})}, {"stages": (Stage((), finish=(Bind("1", ex.const(0, dt.f32)),)),)},
    {"stages": (Stage((), (), (Reduce(("a", "b"), (dt.f32,), (), (), ()),)),)}], ids=str)
def test_kernels_that_cannot_be_written(change):
    with pytest.raises(ValueError):
        print_kernel(replace(two_steps()[0].steps[0].kernel, **change))


@pytest.mark.parametrize("schedule", [Schedule((), "", 4), Schedule((), "3", 4), Schedule((StageSchedule("inf", 4),))])
def test_schedules_that_cannot_be_written(schedule):
    with pytest.raises(ValueError):
        schedule.text()


def test_programs_that_cannot_be_written():
    program, _ = two_steps()
    kernel, values = program.steps[0].kernel, program.values
    numbered = replace(kernel, name="add#1")
    for change in ({"name": "a b"}, {"notes": ["two\nlines"]}, {"notes": ["two\rlines"]}, {"inputs": ()}, {"constants": ("x",)},
                   {"steps": [Step(kernel, ("x", "out.0"))]}, {"steps": [Step(kernel, ("x", "y", "out.0"))]},
                   {"steps": [Step(numbered, ("x", "x", "out.0"))]}, {"values": {**values, "a": Value("b", values["x"].type, "temp", 0)}},
                   {"values": {**values, "t": Value("t", values["x"].type, "scratch", 0)}},
                   {"values": {**values, "a b": Value("a b", values["x"].type, "temp", 0)}}, {"outputs": ("a b",)}):
        with pytest.raises(ValueError):
            print_kernel_graph(replace(program, **change))


@pytest.mark.parametrize("old,new,message", [
    ("kernel @", "loops @", "line 1, column 1: expected 'kernel'"),
    ("] scratch", "] private", "line 1, column 97: expected one of in, out, scratch, found 'private'"),
    ("%x: f32[64]", "%x: f31[64]", "line 1, column 25: unknown dtype 'f31'"),
    ("rows i0:4", "rows i0:many", "expected a number, found 'many'"),
    ("reduce %best", "reduse %best", "line 4, column 5: expected a value, found 'reduse'"),
    ("-inf, 0", "-inf", "expected ',', found 'with'"),
    ("-inf, 0", "-inf, 0, 0", "expected 'with', found ','"),
    ("0, j0 {", "0, j1.5 j0 {", "expected '{', found 'j0'"),
    ("yield %1, %2", "yield %1", "expected ',', found '}'"),
    ("    %1 = select", "    %2 = select", "line 6, column 7: expected instruction %1, found %2"),
    ("let %one", "bind %one", "line 23, column 5: expected a value, found 'bind'"),
    ("1<i32>", "1", "nothing here gives the literal a dtype"),
    ("mul %t0", "mul %t9", "line 39, column 14: variable %t9 is not declared"),
    ("%acc +=", "%bcc +=", "line 36, column 5: expected '%acc', found '%bcc'"),
    ("dot %acc: f32 m:2", "dot %acc: f32 r:2", "expected 'm', found 'r'"),
    ("+ 2*m + cols] = %2", "+ 2*m + cols] = %2 let %q = %2", "line 41, column 39: expected a value, found 'let'"),
    ("vectorize j0", "unroll j0", "expected 'vectorize', found 'unroll'"),
    ("vectorize j0", "parallel j0 j1:2, vectorize j0", "expected ':', found 'j1'"),
    ("serial, vec", "serial vec", "expected ',', found 'vectorize'"),
    ("k:1024", "k:2048", "a partial sum has 1024 steps, found '2048'"),
    ("chunk 64", "chunk 32", "a partial sum has 64 steps, found '32'"),
    ("chunk 64 }", "chunk 64", "expected '}', found the end".replace("the end", "'the end'")),
    ("stage {\n  }", "stage {\n  } stop", "expected 'stage', found 'stop'")])
def test_a_bad_kernel_is_refused_where_it_is_bad(old, new, message):
    assert old in EVERYTHING
    with pytest.raises(ParseError, match=r"^kernel text, line \d+, column \d+: ") as caught:
        parse_kernel(EVERYTHING.replace(old, new, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize("old,new,message", [
    ("program @", "graph @", "line 1, column 1: expected 'program'"),
    ("] temp", "] scratch", "line 4, column 16: expected one of input, constant, temp, output, packed, found 'scratch'"),
    ("node 5", "5", "expected 'node', found '5'"),
    ("%t.5: f32[4] temp", "%x: f32[4] temp", "line 4, column 3: %x is declared twice"),
    ("(%x, %c.1)", "(%x, %c.2)", "line 7, column 21: %c.2 is not declared above"),
    ("(%x, %c.1)", "(%x)", "line 7, column 10: @add#0 writes 1 and reads 2, the step 1 and 1"),
    ("%t.5 = @add#0", "%t.5, %x = @add#0", "expected ',', found '%out.0'"),
    ("%c.1) : f32[4]", "%c.1) : f32[2,2]", "line 7, column 29: %t.5 is declared as f32[4], not f32[2,2]"),
    ("%c.1) : f32[4]", "%c.1)", "expected ':'"),
    ("%t.5 = @add#0", "%t.5 = @mul#0", "line 7, column 10: there is no kernel @mul#0"),
    ("return %out.0", "return %out.1", "line 9, column 10: %out.1 is not declared above"),
    ("kernel @add#0", "kernel @add", "line 12, column 8: @add must be a name and #number"),
    ("kernel @add#0", "kernel @add#1", "line 12, column 8: @add#1 must be"),
    ("kernel @add#0", "kernel @add#0() { } kernel @add#0", "line 12, column 28: @add#0 must be"),
    ("\nrefused", "\nrefused by mistake\nrefused", "line 19, column 1: expected the end, found 'refused'"),
    ("  %5 ->", "%5 ->", "line 20, column 1: expected a refused fusion, indented by two spaces")])
def test_a_bad_program_is_refused_where_it_is_bad(old, new, message):
    assert old in PROGRAM
    with pytest.raises(ParseError, match=r"^program text, line \d+, column \d+: ") as caught:
        parse_kernel_graph(PROGRAM.replace(old, new, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize("text,parse", [(EVERYTHING, parse_kernel), (PROGRAM, parse_kernel_graph)], ids=["kernel", "program"])
def test_text_with_tokens_missing_or_swapped_parses_or_is_refused(text, parse):
    tokens = [token for token in Reader(text.partition("\nrefused")[0]).tokens if token[1]]
    rng, refused = random.Random(0), 0
    for (_, token, start), (_, other, _) in zip(tokens, rng.sample(tokens, len(tokens))):
        for replacement in ("", other, token + " " + token):
            try:
                parse(text[:start] + replacement + text[start + len(token):])
            except ParseError as error:
                assert "line" in str(error) and "column" in str(error)
                refused += 1
    assert refused > 1.5 * len(tokens)
