"""The worker pool as LLVM IR text: `mlc_parallel(fn, ctx, n, bytes)` calls fn(ctx, lo, hi, scratch) on ranges that cover 0..n.

`scratch` is null on the caller's thread, which has memory of its own (the program's arena); on a worker it is 64-byte-aligned
memory of at least `bytes` bytes that no other thread uses. It is kept, and grows by need.

`bytes` is a multiple of 64; one more says that the loop is short. Waking a thread takes longer than a short loop, so those share with whoever is
awake; only after a number of them without anyone, as in a burst of calls, are the sleepers worth waking.

The caller works too. Each thread has its own range, the same for loops of the same length (so that data stays in its core's
cache), and takes over from those of others when it is through, so a worker that wakes late, or whose core is shared with other
machines, costs nothing but its help. Half of what is left in a range is taken at a time: few calls, and little to wait for in the
end. Workers are native threads (no Python in them) that look for work some thousand times and then sleep. Whoever finds
the pool taken (another Python thread, a nested loop) does its loop alone: nothing waits, so nothing can deadlock. A forked
child starts workers of its own at its first loop.

A thread's word in @mlc_words holds a generation in its upper half and how much of its range is not yet taken in its lower
one. Taking some is a compare-and-swap, which fails if the loop has changed meanwhile; what describes the loop changes
only after all of it was run.
"""

from __future__ import annotations

import sys

EXPORTS = ("mlc_parallel", "mlc_threads_reset", "mlc_wanted", "mlc_started")

SPINS = 2000            # about 30 us
PATIENCE = 64           # short loops that run alone before one wakes who sleeps
MOST_THREADS = 256

_PAUSE = {"x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
          "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)")}
_PAUSE["arm64"] = _PAUSE["aarch64"]

# Signals are for Python's threads; those that a fault raises stay, for faulthandler. (Numbers: SIGILL, SIGFPE, SIGSEGV, SIGBUS.)
_SET_MASK, _FAULTS = (2, (4, 8, 11, 7)) if sys.platform == "linux" else (3, (4, 8, 11, 10))

_TEXT = """
@mlc_words = internal global [MOST_THREADS x [8 x i64]] zeroinitializer, align 64
@mlc_scratch = internal global [MOST_THREADS x ptr] zeroinitializer, align 64
@mlc_scratch_bytes = internal global [MOST_THREADS x i64] zeroinitializer, align 64
@mlc_fn = internal global ptr null, align 64
@mlc_ctx = internal global ptr null, align 8
@mlc_n = internal global i64 0, align 8
@mlc_threads = internal global i64 0, align 8
@mlc_generation = internal global i64 0, align 8
@mlc_done = internal global i64 0, align 64
@mlc_busy = internal global i32 0, align 64
@mlc_sleepers = internal global i32 0, align 64
@mlc_signal = internal global i32 0, align 4
@mlc_alone = internal global i64 0, align 64
@mlc_wanted = global i32 1, align 64
@mlc_started = global i32 0, align 4
@mlc_mutex = internal global [16 x i64] zeroinitializer, align 64
@mlc_condition = internal global [16 x i64] zeroinitializer, align 64

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare i32 @sched_yield()
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
PAUSE_DECLARATION

define void @mlc_threads_reset() nounwind {
  call void @llvm.memset.p0.i64(ptr align 64 @mlc_words, i8 0, i64 WORD_BYTES, i1 false)
  store i32 0, ptr @mlc_busy, align 4
  store i32 0, ptr @mlc_sleepers, align 4
  store i32 0, ptr @mlc_signal, align 4
  store i32 0, ptr @mlc_started, align 4
  %m = call i32 @pthread_mutex_init(ptr @mlc_mutex, ptr null)
  %c = call i32 @pthread_cond_init(ptr @mlc_condition, ptr null)
  ret void
}

; Where a thread's range starts, also that of the thread after the last.
define internal i64 @mlc_range_start(i64 %thread, i64 %threads, i64 %n) alwaysinline nounwind {
  %scaled = mul i64 %thread, %n
  %first = udiv i64 %scaled, %threads
  ret i64 %first
}

; Run what is left of the loop, first in the range of thread %self.
define internal void @mlc_run_ranges(i64 %self) nounwind {
entry:
  %count = load atomic i64, ptr @mlc_threads monotonic, align 8
  %scratch.at = getelementptr ptr, ptr @mlc_scratch, i64 %self
  br label %victim
victim:
  %v = phi i64 [ 0, %entry ], [ %v.next, %empty ]
  %ran = phi i64 [ 0, %entry ], [ %ran.now, %empty ]
  %over = icmp uge i64 %v, %count
  br i1 %over, label %finished, label %choose
choose:
  %sum = add i64 %self, %v
  %wraps = icmp uge i64 %sum, %count
  %less = sub i64 %sum, %count
  %owner = select i1 %wraps, i64 %less, i64 %sum
  %word.at = getelementptr [8 x i64], ptr @mlc_words, i64 %owner
  br label %look
look:
  %ran.now = phi i64 [ %ran, %choose ], [ %ran.now, %take ], [ %ran.more, %run ]
  %word = load atomic i64, ptr %word.at acquire, align 8
  %left = and i64 %word, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %empty, label %take
empty:
  %v.next = add i64 %v, 1
  br label %victim
take:
  %fn = load atomic ptr, ptr @mlc_fn monotonic, align 8
  %ctx = load atomic ptr, ptr @mlc_ctx monotonic, align 8
  %n = load atomic i64, ptr @mlc_n monotonic, align 8
  %threads = load atomic i64, ptr @mlc_threads monotonic, align 8
  %rest = lshr i64 %left, 1
  %share = sub i64 %left, %rest
  %fewer = sub i64 %word, %share
  %swap = cmpxchg ptr %word.at, i64 %word, i64 %fewer acq_rel monotonic, align 8
  %taken = extractvalue { i64, i1 } %swap, 1
  br i1 %taken, label %run, label %look
run:
  %first = call i64 @mlc_range_start(i64 %owner, i64 %threads, i64 %n)
  %hi = add i64 %first, %left
  %lo = add i64 %first, %rest
  %scratch = load atomic ptr, ptr %scratch.at monotonic, align 8
  call void %fn(ptr %ctx, i64 %lo, i64 %hi, ptr %scratch)
  %ran.more = add i64 %ran.now, %share
  br label %look
finished:
  %some = icmp ne i64 %ran, 0
  br i1 %some, label %report, label %return
report:
  %before = atomicrmw add ptr @mlc_done, i64 %ran release, align 8
  br label %return
return:
  ret void
}

define internal i1 @mlc_has_work(ptr %word.at) alwaysinline nounwind {
  %word = load atomic i64, ptr %word.at seq_cst, align 8
  %left = and i64 %word, 4294967295
  %some = icmp ne i64 %left, 0
  ret i1 %some
}

define internal ptr @mlc_worker(ptr %argument) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  %filled = call i32 @sigfillset(ptr %mask)
KEEP_FAULTS  %masked = call i32 @pthread_sigmask(i32 SET_MASK, ptr %mask, ptr null)
  %id = ptrtoint ptr %argument to i64
  %self = add i64 %id, 1
  %word.at = getelementptr [8 x i64], ptr @mlc_words, i64 %self
  call void @mlc_default_fp()
  br label %awake
awake:
  br label %spin
spin:
  %count = phi i64 [ 0, %awake ], [ %count.next, %idle ]
  %work = call i1 @mlc_has_work(ptr %word.at)
  br i1 %work, label %run, label %idle
run:
  call void @mlc_run_ranges(i64 %self)
  br label %awake
idle:
  PAUSE_CALL
  %count.next = add i64 %count, 1
  %patient = icmp ult i64 %count.next, SPINS
  br i1 %patient, label %spin, label %tired

tired:
  %locked = call i32 @pthread_mutex_lock(ptr @mlc_mutex)
  %signal = load atomic i32, ptr @mlc_signal monotonic, align 4
  %asleep = atomicrmw add ptr @mlc_sleepers, i32 1 seq_cst, align 4
  %late = call i1 @mlc_has_work(ptr %word.at)
  br i1 %late, label %rise, label %sleep
sleep:
  %now = load atomic i32, ptr @mlc_signal monotonic, align 4
  %same = icmp eq i32 %now, %signal
  br i1 %same, label %wait, label %rise
wait:
  %waited = call i32 @pthread_cond_wait(ptr @mlc_condition, ptr @mlc_mutex)
  br label %sleep
rise:
  %up = atomicrmw sub ptr @mlc_sleepers, i32 1 seq_cst, align 4
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mlc_mutex)
  br label %awake
}

define internal i64 @mlc_start_workers(i64 %wanted) nounwind {
entry:
  %thread = alloca ptr, align 8
  %started = load i32, ptr @mlc_started, align 4
  %first = sext i32 %started to i64
  br label %next
next:
  %id = phi i64 [ %first, %entry ], [ %after, %made ]
  %more = icmp slt i64 %id, %wanted
  br i1 %more, label %make, label %done
make:
  %argument = inttoptr i64 %id to ptr
  %status = call i32 @pthread_create(ptr %thread, ptr null, ptr @mlc_worker, ptr %argument)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %enough, label %made
made:
  %handle = load ptr, ptr %thread, align 8
  %detached = call i32 @pthread_detach(ptr %handle)
  %after = add i64 %id, 1
  %count = trunc i64 %after to i32
  store i32 %count, ptr @mlc_started, align 4
  br label %next
enough:
  %have = trunc i64 %id to i32
  %with.caller = add i32 %have, 1
  store atomic i32 %with.caller, ptr @mlc_wanted monotonic, align 4
  br label %done
done:
  ret i64 %id
}

; Give workers 1 .. %threads - 1 at least %bytes of scratch each; whether there was enough memory. No loop runs meanwhile.
define internal i1 @mlc_scratch_for(i64 %threads, i64 %bytes) nounwind {
entry:
  %made = alloca ptr, align 8
  br label %next
next:
  %t = phi i64 [ 1, %entry ], [ %t.next, %enough ]
  %more = icmp ult i64 %t, %threads
  br i1 %more, label %look, label %done
look:
  %size.at = getelementptr i64, ptr @mlc_scratch_bytes, i64 %t
  %size = load i64, ptr %size.at, align 8
  %fits = icmp uge i64 %size, %bytes
  br i1 %fits, label %enough, label %grow
grow:
  %status = call i32 @posix_memalign(ptr %made, i64 64, i64 %bytes)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %done, label %swap
swap:
  %at = getelementptr ptr, ptr @mlc_scratch, i64 %t
  %old = load ptr, ptr %at, align 8
  %new = load ptr, ptr %made, align 8
  store atomic ptr %new, ptr %at monotonic, align 8
  store i64 %bytes, ptr %size.at, align 8
  call void @free(ptr %old)
  br label %enough
enough:
  %t.next = add i64 %t, 1
  br label %next
done:
  %all = xor i1 %more, true
  ret i1 %all
}

; Whether a short loop runs alone: all workers sleep (or there are none yet), and it is not yet time to wake them.
define internal i1 @mlc_stays_alone() nounwind {
entry:
  %started = load i32, ptr @mlc_started, align 4
  %asleep = load atomic i32, ptr @mlc_sleepers monotonic, align 4
  %awake = icmp slt i32 %asleep, %started
  br i1 %awake, label %shared, label %count
count:
  %before = load atomic i64, ptr @mlc_alone monotonic, align 8
  %loops = add i64 %before, 1
  %patient = icmp ult i64 %loops, PATIENCE
  br i1 %patient, label %alone, label %shared
alone:
  store atomic i64 %loops, ptr @mlc_alone monotonic, align 8
  ret i1 true
shared:
  store atomic i64 0, ptr @mlc_alone monotonic, align 8
  ret i1 false
}

define void @mlc_parallel(ptr %fn, ptr %ctx, i64 %n, i64 %given) nounwind {
entry:
  %marked = and i64 %given, 1
  %bytes = xor i64 %given, %marked
  %short = icmp ne i64 %marked, 0
  %wanted = load atomic i32, ptr @mlc_wanted monotonic, align 4
  %threads = sext i32 %wanted to i64
  %workers = sub i64 %threads, 1
  %pooled = icmp sgt i64 %workers, 0
  %less = sub i64 %n, 2
  %splittable = icmp ult i64 %less, 4294967294
  %worthwhile = and i1 %pooled, %splittable
  br i1 %worthwhile, label %weigh, label %alone
weigh:
  br i1 %short, label %hesitate, label %claim
hesitate:
  %stays = call i1 @mlc_stays_alone()
  br i1 %stays, label %alone, label %claim
claim:
  %swap = cmpxchg ptr @mlc_busy, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %ready, label %alone
alone:
  call void %fn(ptr %ctx, i64 0, i64 %n, ptr null)
  ret void
refuse:
  store atomic i32 0, ptr @mlc_busy release, align 4
  br label %alone

ready:
  %furnished = call i1 @mlc_scratch_for(i64 %threads, i64 %bytes)
  br i1 %furnished, label %man, label %refuse
man:
  %started = load i32, ptr @mlc_started, align 4
  %running = sext i32 %started to i64
  %enough = icmp sge i64 %running, %workers
  br i1 %enough, label %publish, label %start
start:
  %made = call i64 @mlc_start_workers(i64 %workers)
  br label %publish
publish:
  store atomic ptr %fn, ptr @mlc_fn monotonic, align 8
  store atomic ptr %ctx, ptr @mlc_ctx monotonic, align 8
  store atomic i64 %n, ptr @mlc_n monotonic, align 8
  store atomic i64 %threads, ptr @mlc_threads monotonic, align 8
  store atomic i64 0, ptr @mlc_done monotonic, align 8
  %previous = load i64, ptr @mlc_generation, align 8
  %generation = add i64 %previous, 1
  store i64 %generation, ptr @mlc_generation, align 8
  %high = shl i64 %generation, 32
  br label %share
share:
  %t = phi i64 [ 0, %publish ], [ %t.next, %share ]
  %t.next = add i64 %t, 1
  %from = call i64 @mlc_range_start(i64 %t, i64 %threads, i64 %n)
  %to = call i64 @mlc_range_start(i64 %t.next, i64 %threads, i64 %n)
  %own = sub i64 %to, %from
  %word = or i64 %high, %own
  %word.at = getelementptr [8 x i64], ptr @mlc_words, i64 %t
  store atomic i64 %word, ptr %word.at release, align 8
  %shared = icmp eq i64 %t.next, %threads
  br i1 %shared, label %shared.all, label %share
shared.all:
  fence seq_cst
  %asleep = load atomic i32, ptr @mlc_sleepers seq_cst, align 4
  %anyone = icmp sgt i32 %asleep, 0
  br i1 %anyone, label %consider, label %work
consider:
  %there = load i32, ptr @mlc_started, align 4
  %none.awake = icmp sge i32 %asleep, %there
  %long = xor i1 %short, true
  %worth.waking = or i1 %long, %none.awake
  br i1 %worth.waking, label %wake, label %work
wake:
  %locked = call i32 @pthread_mutex_lock(ptr @mlc_mutex)
  %signalled = atomicrmw add ptr @mlc_signal, i32 1 monotonic, align 4
  %woken = call i32 @pthread_cond_broadcast(ptr @mlc_condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mlc_mutex)
  br label %work
work:
  call void @mlc_run_ranges(i64 0)
  br label %wait
wait:
  %count = phi i64 [ 0, %work ], [ %count.next, %waiting ]
  %done = load atomic i64, ptr @mlc_done acquire, align 8
  %complete = icmp eq i64 %done, %n
  br i1 %complete, label %finish, label %idle
idle:
  PAUSE_CALL
  %count.next = add i64 %count, 1
  %patient = icmp ult i64 %count.next, SPINS
  br i1 %patient, label %waiting, label %yield
yield:
  %yielded = call i32 @sched_yield()
  br label %waiting
waiting:
  br label %wait
finish:
  store atomic i32 0, ptr @mlc_busy release, align 4
  ret void
}
"""


def text(arch: str) -> str:
    """The functions of EXPORTS, without what the support library's module has already: `mlc_default_fp()`, which sets a thread's
    floating-point settings."""
    declaration, call = _PAUSE.get(arch, ("", ""))
    keep = "".join(f"  %fault{number} = call i32 @sigdelset(ptr %mask, i32 {number})\n" for number in _FAULTS)
    replacements = {"PAUSE_DECLARATION": declaration, "PAUSE_CALL": call, "KEEP_FAULTS": keep, "SET_MASK": str(_SET_MASK),
                    "SPINS": str(SPINS), "MOST_THREADS": str(MOST_THREADS), "WORD_BYTES": str(64 * MOST_THREADS),
                    "PATIENCE": str(PATIENCE)}
    result = _TEXT
    for name, value in replacements.items():
        result = result.replace(name, value)
    return result
