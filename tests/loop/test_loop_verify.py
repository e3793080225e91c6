"""The loop verifier: good kernels pass, and each invariant refuses a kernel broken by hand in that one way."""

import dataclasses
import itertools

import numpy as np
import pytest
from random_kernels import random_kernel

from mlc.core import dtype as dt
from mlc.core import expr as ex
from mlc.core.affine import Affine
from mlc.core.errors import VerifyError
from mlc.loop.ir import Assign, Buffer, Decl, Fold, For, LoopKernel, Store, Tile, load
from mlc.loop.sites import accesses, all_sites
from mlc.loop.solve import may_be_zero
from mlc.loop.text import parse_kernel
from mlc.loop.verify import INVARIANTS, verify

BUFFERS = "%x: f32[64] in, %w: f32[64] in, %out: f32[64] out, %n: i32[64] out, %t: f32[64] scratch"


def parsed(body: str, extra: str = "") -> LoopKernel:
    return parse_kernel(f"loops @k({BUFFERS}) {extra} {{ {body} }}")


GOOD = {
    "elementwise in place": ("vector(16) i in 64 { %0 = mul %x[i], 2.0 : f32 %out[i] = %0 }", "alias(%x %out)"),
    "masked tail reaches the last element": ("vector(16) i in 33 { %out[i + 31] = %x[i + 31] }", ""),
    "rows in parallel, blocks of columns inside": (
        "parallel i in 4 { for jo in 2 { vector(8) ji in 8 { %out[16*i + 8*jo + ji] = %x[8*jo + ji] } } }", ""),
    "blocks of columns in parallel": ("parallel jo in 2 { for i in 4 { vector(8) ji in 8 { %out[16*i + 8*jo + ji] = %x[ji] } } }", ""),
    "interleaved by a parallel loop": ("parallel p in 4 { for i in 16 { %out[4*i + p] = 1.0 } }", ""),
    "strided lanes": ("vector(8) i in 32 { %out[2*i] = %out[2*i + 1] }", ""),
    "a reversed row": ("vector(8) i in 64 { %out[63 - i] = %x[i] }", ""),
    "scratch private to an iteration": ("parallel p in 8 { for i in 8 { %t[i] = %x[i] } for j in 8 { %out[8*p + j] = %t[7 - j] } }", ""),
    "the next parallel loop reads what the last wrote": ("parallel p in 8 { %out[p] = 1.0 } parallel q in 8 { %out[q + 8] = %out[7 - q] }", ""),
    "nothing happens in an empty loop": ("for i in 0 { %out[i + 1000] = %x[i - 5] }", ""),
    "one iteration cannot race": ("parallel p in 1 { %out[3] = %x[p] }", ""),
    "one lane cannot race": ("vector(8) i in 1 { %out[3] = %x[i] }", ""),
    "in place rows: all passes read before the last writes": (
        """parallel i in 4 {
             var %m: f32 = 0.0
             for j in 16 { %0 = max %m, %x[16*i + j] : f32 %m = %0 }
             vector(8) j in 16 { %0 = div %x[16*i + j], %m : f32 %out[16*i + j] = %0 }
           }""", "alias(%x %out)"),
    "in place under a tile": ("tile %acc: f32 r:2 c:8 k:4 vector(4) { %acc += %w[4*r + k] * %w[8*k + c] } "
                              "then { %0 = add %acc, %x[8*r + c] : f32 %out[8*r + c] = %0 }", "alias(%x %out)"),
    "a tile may overwrite its own operand once it is done": (
        "tile %acc: f32 r:2 c:8 k:4 vector(4) { %acc += %x[4*r + k] * %w[8*k + c] } then { %out[8*r + c] = %acc }", "alias(%x %out)"),
    "either way fills the row": (
        """parallel p in 4 {
             %0 = lt %x[p], 1.0 : bool
             if %0 { vector(8) i in 8 { %out[8*p + i] = 1.0 } } else { for j in 8 { %out[8*p + j] = %x[j] } }
           }""", ""),
    "both ways declare a name, in place": (
        """if true { var %s: f32 = %x[0] %out[0] = %s } else { var %s: f32 = 2.0 %out[0] = %s }""", "alias(%x %out)"),
    "in bounds where the condition holds": (
        "for i in 8 { %0 = lt i, 4 : bool if %0 { %out[i] = %x[20*i] } else { %out[i] = %x[20*i - 80] } }", ""),
    "asks for what is not there": ("vector(16) i in 64 { ask %x[i + 1000] }", ""),
    "two halves of scratch change places beside a tile": (
        """for s in 2 { for i in 2 {
             tile %acc: f32 r:2 c:4 k:4 vector(4) { %acc += %x[4*r + k] * %t[16*i + 4*k + c] } beside o in 2 {
               %0 = lt i, 1 : bool
               if %0 { vector(4) l in 4 { %t[16*i + 4*o + l + 16] = %w[16*s + 4*o + l] } }
               else { vector(4) m in 4 { %t[4*o + m] = %w[16*s + 4*o + m + 16] } }
             } then { %out[16*s + 8*i + 4*r + c] = %acc } } }""", ""),
    "a variable with lanes, summed over, folded": (
        """var %acc: f32<8> = 0.0
           vector(8) i in 37 { %0 = add %acc, %x[i] : f32 %acc = %0 }
           fold %s = %acc { %0 = add %a.0, %b.0 : f32 yield %0 }
           %out[0] = %s""", ""),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_kernels_pass(name):
    verify(parsed(*GOOD[name]))


@pytest.mark.parametrize("seed", range(120))
def test_random_kernels_pass(seed):
    verify(random_kernel(seed))


FOLD = "fold %s = %v { %0 = add %a.0, %b.0 : f32 yield %0 } "
TILE = "tile %acc: f32 r:2 c:4 k:4 vector(4) { %acc += %x[4*r + k] * %w[4*k + c] } then { %out[4*r + c] = %acc }"



def beside(what: str, right: str = "%t[4*k + c]") -> str:
    """A tile that reads the first half of %t, and what runs beside it."""
    return (f"for z in 64 {{ %t[z] = 0.0 }} tile %acc: f32 r:2 c:4 k:4 vector(4) {{ %acc += %x[4*r + k] * {right} }} beside o in 4 {{ {what} }} "
            "then { %out[4*r + c] = %acc }")


# invariant -> (name, body, aliases) of kernels that break it, and nothing before it.
BROKEN = {
    "loops_are_well_formed": [
        ("negative extent", "for i in -1 { }", ""),
        ("width 0", "vector(0) i in 4 { }", ""),
        ("width on a serial loop", "for(4) i in 4 { }", ""),
        ("parallel inside", "for i in 4 { parallel p in 4 { } }", ""),
    ],
    "vector_loops_do_not_nest": [
        ("vector in vector", "vector(4) i in 4 { for j in 2 { vector(4) k in 4 { } } }", ""),
        ("tile in vector", f"vector(4) i in 4 {{ {TILE} }}", ""),
    ],
    "tiles_are_well_formed": [
        ("no rows", TILE.replace("r:2", "r:0"), ""),
        ("no depth", TILE.replace("k:4", "k:0"), ""),
        ("no width", TILE.replace("vector(4)", "vector(0)"), ""),
        ("assignment in the body", TILE.replace("then {", "then { %acc = 0.0"), ""),
        ("strided b", TILE.replace("%w[4*k + c]", "%w[4*k + 2*c]"), ""),
        ("bool accumulators", TILE.replace("%acc: f32", "%acc: bool"), ""),
        ("steps that cannot be shared out", TILE.replace("} then", "} beside o in 3 { } then"), ""),
        ("nothing beside", TILE.replace("} then", "} beside o in 0 { } then"), ""),
    ],
    "what_runs_beside_a_tile_stays_apart": [
        ("stores what the tile reads", beside("%t[4*o] = 1.0"), ""),
        ("in the half that is read, one time of two", f"for i in 2 {{ {beside('%t[16*i + o] = 1.0', '%t[16*i + 4*k + c]')} }}", ""),
        ("the other half, the second time too", f"for i in 2 {{ {beside('%t[o + 16] = 1.0', '%t[16*i + 4*k + c]')} }}", ""),
        ("loads what the tile stores", beside("%t[o + 32] = %out[o]"), ""),
        ("stores what the tile stores", beside("%t[o + 32] = 1.0").replace("%out[4*r + c]", "%t[4*r + c + 32]"), ""),
        ("stores to an output", beside("%out[o + 32] = 1.0"), ""),
        ("assigns from outside", "var %s: f32 = 0.0 " + beside("%s = 1.0"), ""),
    ],
    "names_are_not_shadowed": [
        ("loop in a loop of the same name", "for i in 4 { for i in 4 { } }", ""),
        ("variable twice", "var %v: f32 = 0.0 for i in 2 { var %v: f32 = 1.0 }", ""),
        ("variable named as a loop", "for i in 4 { var %i: f32 = 0.0 }", ""),
        ("fold with two targets of one name", "var %v: f32<4> = 0.0 fold %s, %s = %v, %v { yield %a.0, %b.1 }", ""),
        ("fold onto its source", "var %v: f32<4> = 0.0 " + FOLD.replace("%s", "%v"), ""),
        ("tile named as a variable", "var %acc: f32 = 0.0 " + TILE, ""),
        ("tile with one name twice", TILE.replace("k:4", "c:4"), ""),
    ],
    "names_are_declared_before_use": [
        ("variable later", "%out[0] = %v<f32> var %v: f32 = 0.0", ""),
        ("variable of another body", "for i in 2 { var %v: f32 = 0.0 } %out[0] = %v<f32>", ""),
        ("assigned but not declared", "%v = 0.0<f32>", ""),
        ("folded but not declared", "fold %s = %v { %0 = add %a.0<f32>, %b.0<f32> : f32 yield %0 }", ""),
        ("loop variable outside its loop", "for i in 2 { } %out[i] = 0.0", ""),
        ("loop variable as a value outside its loop", "for i in 2 { } %0 = convert i : f32 %out[0] = %0", ""),
        ("unknown buffer", "%out[0] = %nothing[0]<f32>", ""),
        ("unknown stored buffer", "%nothing[0] = 1.0<f32>", ""),
        ("c in a tile's a", TILE.replace("4*r + k", "c + k"), ""),
        ("r in a tile's b", TILE.replace("4*k + c", "4*k + r"), ""),
        ("k in a tile's body", TILE.replace("%out[4*r + c]", "%out[k]"), ""),
    ],
    "folds_are_well_formed": [
        ("three lanes", "var %v: f32<3> = 0.0 " + FOLD, ""),
        ("lanes that differ", "var %v: f32<4> = 0.0 var %u: f32<8> = 0.0 fold %s, %q = %v, %u { yield %a.0, %b.1 }", ""),
        ("inside a vector loop", "vector(4) i in 4 { var %v: f32<4> = 0.0 " + FOLD + "}", ""),
        ("combine over something else", "var %v: f32<4> = 0.0 var %u: f32 = 0.0 fold %s = %v { %0 = add %a.0, %u<f32> : f32 yield %0 }", ""),
        ("combine that loads", "var %v: f32<4> = 0.0 fold %s = %v { %0 = add %a.0, %x[0] : f32 yield %0 }", ""),
    ],
    "expressions_are_well_typed": [
        ("add of two dtypes", "%0 = add %x[0], 1<i32> : f32 %out[0] = %0", ""),
        ("add of bools", "%0 = add true, false : bool %1 = convert %0 : f32 %out[0] = %1", ""),
        ("sqrt of an integer", "%0 = sqrt 4 : i32 %n[0] = %0", ""),
        ("and of floats", "%0 = and 1.0, 2.0 : f32 %out[0] = %0", ""),
        ("shift of bools", "%0 = shl true, true : bool %1 = convert %0 : f32 %out[0] = %1", ""),
        ("compare giving f32", "%0 = lt %x[0], 1.0 : f32 %out[0] = %0", ""),
        ("compare of two dtypes", "%0 = lt %x[0], 1<i32> : bool %1 = convert %0 : f32 %out[0] = %1", ""),
        ("select on a float", "%0 = select %x[0], 1.0, 2.0 : f32 %out[0] = %0", ""),
        ("bitcast to another width", "%0 = bitcast %x[0] : i64 %1 = convert %0 : f32 %out[0] = %1", ""),
        ("unknown instruction", "%0 = tanh %x[0] : f32 %out[0] = %0", ""),
        ("too few operands", "%0 = fma %x[0], 1.0 : f32 %out[0] = %0", ""),
        ("load of another dtype", "%0 = convert %x[0]<f64> : f32 %out[0] = %0", ""),
        ("index of another dtype", "for i in 4 { %0 = convert i<i32> : f32 %out[0] = %0 }", ""),
        ("variable of another dtype", "var %v: i32 = 0 %0 = convert %v<f64> : f32 %out[0] = %0", ""),
        ("fold of another dtype", "var %v: f32<4> = 0.0 fold %s = %v { %0 = add %a.0<i32>, %b.0<i32> : i32 yield %0 }", ""),
    ],
    "values_have_the_declared_dtype": [
        ("declared", "var %v: f32 = 0<i32>", ""),
        ("assigned", "var %v: f32 = 0.0 %v = 0<i32>", ""),
        ("stored", "%out[0] = 0<i32>", ""),
        ("tile operand", TILE.replace("%x[4*r + k]", "1<i32>"), ""),
        ("fold result", "var %v: f32<4> = 0.0 fold %s = %v { yield 1<i32> }", ""),
    ],
    "lanes_agree": [
        ("declared with other lanes than the loop's", "vector(4) i in 4 { var %v: f32<8> = 0.0 }", ""),
        ("lanes into one", "vector(4) i in 4 { var %v: f32 = %x[i] }", ""),
        ("no lanes", "var %v: f32<0> = 0.0", ""),
        ("variable of other lanes read", "var %v: f32<8> = 0.0 vector(4) i in 4 { %0 = add %x[i], %v : f32 %out[i] = %0 }", ""),
        ("variable of other lanes assigned", "var %v: f32<8> = 0.0 vector(4) i in 4 { %v = 0.0 }", ""),
        ("lanes stored to one place", "var %v: f32<8> = 0.0 %out[0] = %v", ""),
        ("two numbers of lanes", "var %v: f32<8> = 0.0 var %u: f32<4> = 0.0 %0 = add %u, %v : f32 %v = %0", ""),
        ("lanes as a tile's left operand", "var %v: f32<4> = 0.0 " + TILE.replace("%x[4*r + k]", "%v"), ""),
    ],
    "every_load_in_bounds": [
        ("one past the end", "for i in 64 { %out[i] = %x[i + 1] }", ""),
        ("one before the start", "for i in 64 { %out[i] = %x[i - 1] }", ""),
        ("negative stride too far", "for i in 9 { %out[i] = %x[63 - 8*i] }", ""),
        ("in the last lane before the end", "vector(16) i in 33 { %out[i] = %x[i + 32] }", ""),
        ("in a tile operand", TILE.replace("%w[4*k + c]", "%w[20*k + c + 1]"), ""),
    ],
    "every_store_in_bounds": [
        ("one past the end", "for i in 64 { %out[i + 1] = %x[i] }", ""),
        ("one before the start", "for i in 64 { %out[i - 1] = %x[i] }", ""),
        ("masked loop over too many", "vector(16) i in 65 { %out[i] = 0.0 }", ""),
        ("in a tile body", TILE.replace("%out[4*r + c]", "%out[61*r + c]"), ""),
    ],
    "only_out_and_scratch_are_stored": [("store to an input", "%x[0] = 1.0", "")],
    "scratch_stays_inside_its_iteration": [
        ("stored before the parallel loop", "for i in 8 { %t[i] = %x[i] } parallel p in 8 { %out[p] = %t[p] }", ""),
        ("read after the parallel loop", "parallel p in 8 { %t[p] = %x[p] } for i in 8 { %out[i] = %t[i] }", ""),
        ("handed from one parallel loop to the next", "parallel p in 8 { %t[p] = %x[p] } parallel q in 8 { %out[q] = %t[q] }", ""),
        ("never stored", "for i in 8 { %out[i] = %t[i] }", ""),
    ],
    "parallel_iterations_are_independent": [
        ("all write one element", "parallel p in 4 { %out[0] = %x[p] }", ""),
        ("blocks that overlap", "parallel p in 4 { for i in 9 { %out[8*p + i] = 0.0 } }", ""),
        ("overlap through two inner loops", "parallel p in 4 { for i in 4 { for j in 5 { %out[4*p + 12*i + j] = 0.0 } } }", ""),
        ("reads the neighbour's", "parallel p in 4 { %out[p] = 1.0 %n[p] = 1 %t[0] = %out[3 - p] }", ""),
        ("accumulates into a variable from outside", "var %s: f32 = 0.0 parallel p in 4 { %0 = add %s, %x[p] : f32 %s = %0 } %out[0] = %s", ""),
        ("two statements", "parallel p in 4 { %out[2*p] = 1.0 %out[2*p + 2] = 2.0 }", ""),
        ("tiles that overlap", "parallel p in 2 { " + TILE.replace("%out[4*r + c]", "%out[7*p + 4*r + c]") + " }", ""),
    ],
    "vector_lanes_are_independent": [
        ("all lanes store one element", "vector(4) i in 4 { %out[0] = %x[i] }", ""),
        ("reads the next lane's", "vector(4) i in 8 { %out[i + 1] = %out[i] }", ""),
        ("reads the mirrored lane's", "vector(8) i in 8 { %out[i] = 1.0 %t[i] = %out[7 - i] }", ""),
        ("lanes meet through an inner loop", "vector(4) i in 4 { for j in 5 { %out[4*i + j] = 1.0 } }", ""),
        ("a tile whose columns coincide", TILE.replace("%out[4*r + c]", "%out[r]"), ""),
        ("a scalar from outside", "var %s: f32 = 0.0 vector(4) i in 4 { %s = 1.0 }", ""),
    ],
    "branches_are_well_formed": [
        ("in a vector loop", "vector(8) i in 8 { if true { %out[i] = 1.0 } else { } }", ""),
        ("assigns from outside", "var %s: f32 = 0.0 if true { %s = 1.0 } else { } %out[0] = %s", ""),
        ("lanes from outside, the other way", "var %v: f32<8> = 0.0 if true { } else { vector(8) i in 8 { %v = 1.0 } }", ""),
    ],
    "aliases_read_before_write": [
        ("read again after either way", "if true { %out[0] = 1.0 } else { %out[1] = 1.0 } for i in 8 { %out[i + 2] = %x[i] }", "alias(%x %out)"),
        ("shifted", "vector(8) i in 63 { %out[i + 1] = %x[i] }", "alias(%x %out)"),
        ("shifted, serial", "for i in 63 { %out[i + 1] = %x[i] }", "alias(%x %out)"),
        ("reversed", "for i in 64 { %out[i] = %x[63 - i] }", "alias(%x %out)"),
        ("transposed", "for i in 8 { for j in 8 { %out[8*i + j] = %x[8*j + i] } }", "alias(%x %out)"),
        ("read again by a later pass", "for i in 8 { %out[i] = %x[i] } for j in 8 { %out[j + 8] = %x[j] }", "alias(%x %out)"),
        ("read again by a later statement", "for i in 8 { %out[i] = 0.0 %t[i] = %x[i] }", "alias(%x %out)"),
        ("broadcast input", "for i in 8 { for j in 8 { %0 = add %x[j], 1.0 : f32 %out[8*i + j] = %0 } }", "alias(%x %out)"),
        ("rows in parallel read the row above", "parallel i in 7 { vector(8) j in 8 { %out[8*i + j + 8] = %x[8*i + j] } }", "alias(%x %out)"),
        ("the next tile needs it", "for o in 2 { " + TILE.replace("%out[4*r + c]", "%out[8*o + 4*r + c]") + " }", "alias(%x %out)"),
        ("the second pair", "vector(8) i in 8 { %out[i] = %x[i] } vector(8) j in 8 { %n[j] = 1 %t[j] = %w[j] }", "alias(%w %n)"),
    ],
}
BROKEN_CASES = [(invariant, *case) for invariant, cases in BROKEN.items() for case in cases]


@pytest.mark.parametrize("invariant,name,body,aliases", BROKEN_CASES, ids=[f"{c[0]}: {c[1]}" for c in BROKEN_CASES])
def test_a_broken_kernel_is_refused_by_its_invariant(invariant, name, body, aliases):
    with pytest.raises(VerifyError) as caught:
        verify(parsed(body, aliases), "lower")
    assert caught.value.invariant == invariant
    assert caught.value.stage == "lower" and caught.value.where.startswith("kernel @k") and "after lower" in str(caught.value)


X, OUT, SCRATCH = Buffer("x", dt.f32, 8, "in"), Buffer("out", dt.f32, 8, "out"), Buffer("t", dt.f32, 8, "scratch")
BROKEN_BY_HAND = [
    ("buffers_are_well_formed", "one name twice", LoopKernel("k", (X, dataclasses.replace(OUT, name="x")), ())),
    ("buffers_are_well_formed", "unknown role", LoopKernel("k", (dataclasses.replace(X, role="inout"),), ())),
    ("buffers_are_well_formed", "negative size", LoopKernel("k", (dataclasses.replace(X, size=-1),), ())),
    ("buffers_are_well_formed", "scratch first", LoopKernel("k", (SCRATCH, OUT), ())),
    ("buffers_are_well_formed", "alias of nothing", LoopKernel("k", (X, OUT), (), frozenset({("y", "out")}))),
    ("buffers_are_well_formed", "alias the wrong way round", LoopKernel("k", (X, OUT), (), frozenset({("out", "x")}))),
    ("buffers_are_well_formed", "alias of another element size",
     LoopKernel("k", (dataclasses.replace(X, dtype=dt.f16), OUT), (), frozenset({("x", "out")}))),
    ("loops_are_well_formed", "unknown kind", LoopKernel("k", (X,), (For("i", 3, (), "warp"),))),
    ("values_have_the_declared_dtype", "two values for one name",
     LoopKernel("k", (), (Decl("v", dt.f32, 1, ex.const(0, dt.f32)), Assign(("v",), (ex.const(0, dt.f32), ex.const(1, dt.f32)))))),
    ("values_have_the_declared_dtype", "one name twice",
     LoopKernel("k", (), (Decl("v", dt.f32, 1, ex.const(0, dt.f32)), Assign(("v", "v"), (ex.const(0, dt.f32), ex.const(1, dt.f32)))))),
    ("folds_are_well_formed", "two targets for one source",
     LoopKernel("k", (), (Decl("v", dt.f32, 2, ex.const(0, dt.f32)), Fold(("s", "q"), ("v",), (ex.var("a.0", dt.f32),))))),
    ("expressions_are_well_typed", "an op's operand left in", LoopKernel("k", (OUT,), (Store("out", Affine(), ex.arg(0, dt.f32)),))),
    ("expressions_are_well_typed", "constant too big", LoopKernel("k", (), (Decl("v", dt.i8, 1, ex.make("const", dt.i8, (), 300)),))),
    ("expressions_are_well_typed", "bool of 2", LoopKernel("k", (), (Decl("v", dt.bool_, 1, ex.make("const", dt.bool_, (), 2)),))),
    ("tiles_are_well_formed", "lanes beside it",
     LoopKernel("k", (X, OUT), (Tile("acc", dt.f32, "r", 1, "c", 2, "k", 2, 2, *[load("x", dt.f32, Affine())] * 2, (),
                                     beside=For("o", 2, (), "vector", 2)),))),
    ("tiles_are_well_formed", "a loop in its body",
     LoopKernel("k", (X, OUT), (Tile("acc", dt.f32, "r", 1, "c", 2, "k", 2, 2, *[load("x", dt.f32, Affine())] * 2, (For("i", 1, ()),)),))),
]


@pytest.mark.parametrize("invariant,name,kernel", BROKEN_BY_HAND, ids=[f"{c[0]}: {c[1]}" for c in BROKEN_BY_HAND])
def test_what_text_cannot_say_is_refused_too(invariant, name, kernel):
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    assert caught.value.invariant == invariant


def test_every_invariant_has_a_kernel_that_breaks_it():
    assert {f.__name__ for f in INVARIANTS} == set(BROKEN) | {case[0] for case in BROKEN_BY_HAND}


# --------------------------------------------------------------------------- proofs against enumeration
@pytest.mark.parametrize("seed", range(40))
def test_the_solver_agrees_with_enumeration(seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        terms = []
        for _ in range(int(rng.integers(0, 5))):
            low = int(rng.integers(-3, 4))
            terms.append((int(rng.integers(-20, 21)), low, low + int(rng.integers(-1, 5))))
        offset = int(rng.integers(-30, 31))
        sums = (offset + sum(c * x for (c, _, _), x in zip(terms, point))
                for point in itertools.product(*(range(low, high + 1) for _, low, high in terms)))
        assert may_be_zero(offset, terms) == any(s == 0 for s in sums)


def test_the_solver_answers_large_mixed_radix_questions_at_once():
    radix = [(512 * 512 * 3, 1, 511), (512 * 3, -511, 511), (3, -511, 511)]
    assert not may_be_zero(0, radix)
    assert not may_be_zero(1, [*radix, (3, -10**6, 10**6)])
    assert may_be_zero(-(512 * 512 * 3) + 3, radix)


def executed(kernel: LoopKernel, order: dict[str, list[int]]):
    """(iteration of the outermost loop, buffer, element, is store) of every access in the order it runs, from the definition alone."""
    def walk(body, values, outer):
        for stmt in body:
            if isinstance(stmt, For):
                for i in order.get(stmt.var, range(stmt.extent)):
                    yield from walk(stmt.body, {**values, stmt.var: i}, i if outer is None else outer)
            else:
                for node in ex.topological((stmt.value,)):
                    if node.op == "load":
                        yield outer, node.attr[0], node.attr[1].evaluate(values), False
                yield outer, stmt.buffer, stmt.index.evaluate(values), True
    return list(walk(kernel.body, {}, None))


def small_kernel(rng, kind: str, aliases: bool) -> LoopKernel:
    """Two or three nested loops of small extents around one or two stores at random indices."""
    extents = {v: int(rng.integers(1, 5)) for v in "pij"}
    place = lambda: Affine(40, {v: int(rng.choice([0, 0, 1, 2, 3, 4, 5, 8, 12, -1, -4])) for v in "pij"})
    statements = []
    for _ in range(int(rng.integers(1, 3))):
        at = place()
        source = "x" if aliases else "out"
        read = at if rng.random() < 0.5 else place()
        statements.append(Store("out", at, load(source, dt.f32, read) + 1.0))
    body = For("p", extents["p"], (For("i", extents["i"], (For("j", extents["j"], tuple(statements)),)),), kind)
    buffers = (Buffer("x", dt.f32, 200, "in"), Buffer("out", dt.f32, 200, "out"))
    return LoopKernel("k", buffers, (body,), frozenset({("x", "out")}) if aliases else frozenset())


def test_races_are_found_exactly():
    rng = np.random.default_rng(7)
    verdicts = {True: 0, False: 0}
    for _ in range(400):
        kernel = small_kernel(rng, "parallel", False)
        trace = executed(kernel, {})
        touched: dict[int, set[tuple[int, bool]]] = {}
        for outer, buffer, element, is_store in trace:
            if buffer == "out":
                touched.setdefault(element, set()).add((outer, is_store))
        race = any(a[0] != b[0] and (a[1] or b[1]) for who in touched.values() for a, b in itertools.combinations(who, 2))
        found = False
        try:
            verify(kernel)
        except VerifyError as error:
            assert error.invariant == "parallel_iterations_are_independent", error
            found = True
        assert found or not race, kernel
        # Where all accesses move alike with the parallel variable, the proof is exact.
        if len({a.index.coefficient("p") for a in accesses(all_sites(kernel)) if a.buffer == "out"}) == 1:
            assert found == race, kernel
        verdicts[race] += 1
    assert min(verdicts.values()) > 50


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_reads_after_writes_of_aliases_are_found(kind):
    rng = np.random.default_rng(11)
    verdicts = {True: 0, False: 0}
    for _ in range(400):
        kernel = small_kernel(rng, kind, True)
        late, written_order = False, range(kernel.body[0].extent)
        for iterations in itertools.permutations(written_order) if kind == "parallel" else [written_order]:
            written = set()
            for _, _, element, is_store in executed(kernel, {"p": list(iterations)}):
                late |= not is_store and element in written
                if is_store:
                    written.add(element)
        found = False
        try:
            verify(kernel)
        except VerifyError as error:
            found = True
            if error.invariant == "parallel_iterations_are_independent":
                continue
            assert error.invariant == "aliases_read_before_write", error
        assert found or not late, kernel
        verdicts[late] += 1
    assert min(verdicts.values()) > 20
