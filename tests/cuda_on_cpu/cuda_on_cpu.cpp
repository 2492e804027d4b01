// The scheduler of cuda_on_cpu.h. A launch runs its blocks one after the other. It ends at the first error, with a message.
#include "cuda_on_cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#ifdef __SANITIZE_ADDRESS__
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
#else
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

extern "C" char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));

#ifdef __x86_64__  // ucontext's switch asks the kernel for the signals: 0.3 µs instead of 5 ns
struct Context { void* stack; };
extern "C" void emu_switch(Context* from, Context* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden emu_switch
.globl emu_switch
.type emu_switch,@function
emu_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi)
 movq (%rsi),%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
)");
static void prepare(Context& context, char* stack, size_t size, void (*run)()) {
  void** top = reinterpret_cast<void**>(stack + size);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(run);
  context.stack = top - 6;
}
#else
typedef ucontext_t Context;
static void emu_switch(Context* from, Context* to) { swapcontext(from, to); }
static void prepare(Context& context, char* stack, size_t size, void (*run)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = size;
  context.uc_link = nullptr;
  makecontext(&context, run, 0);
}
#endif

namespace emu {
constexpr int WARP_SIZE = 32, MOST_THREADS = 1024;
constexpr size_t STACK = 1 << 20;             // of a thread; pages that it does not touch take no memory
constexpr long STATIC_LIMIT = 48 << 10;       // the bytes of __shared__ arrays of fixed size
constexpr long DYNAMIC_LIMIT = 227 << 10;     // of all shared memory of a block, from sm_90 on
constexpr unsigned char PATTERN = 0xfb;       // floats of these bytes are around -2.6e36

struct Copy { char* to; const void* from; int bytes, group; bool done; };

struct Fibre : Thread {
  Context context;
  char* stack;
  void* fake_stack;
  bool done;
  Wait wait;
  int line, source;
  unsigned mask;
  uint64_t value;
  std::vector<Copy> copies;
  int groups, barriers, warp_barriers;
};

Thread* current;
static bool atomic;
uint3 block_index, block_size, grid_size;
static Fibre fibres[MOST_THREADS];
static int threads, ready[MOST_THREADS], waiting_to_run, finished;
static Context scheduler;
static const void* own_stack;
static size_t own_stack_size;
static const Kernel* kernel;
static const Any* arguments;
static char* dynamic;
static long dynamic_bytes;
static uint64_t state;
static bool shuffled, failed;
static char message[1000];
static struct { long grid, block, dynamic; int parameters; Any arguments[64]; const char* name; } last;

static uint64_t draw(uint64_t below) {  // splitmix64
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return (z ^ z >> 31) % below;
}

static void say(const char* format, ...) {
  if (failed) return;
  failed = true;
  va_list list;
  va_start(list, format);
  int at = snprintf(message, sizeof message, "%s, block %u: ", kernel->name, block_index.x);
  vsnprintf(message + at, sizeof message - at, format, list);
  va_end(list);
}

static Fibre& me() { return *static_cast<Fibre*>(current); }

static void to_scheduler() {
  Fibre& fibre = me();
  __sanitizer_start_switch_fiber(fibre.done ? nullptr : &fibre.fake_stack, own_stack, own_stack_size);
  emu_switch(&fibre.context, &scheduler);
  __sanitizer_finish_switch_fiber(fibre.fake_stack, &own_stack, &own_stack_size);
}

static void run_thread() {
  __sanitizer_finish_switch_fiber(nullptr, &own_stack, &own_stack_size);
  kernel->body(arguments);
  if (!me().copies.empty()) say("thread %d ends and has not waited for what it copies", current->number);
  me().done = true;
  to_scheduler();
}

static void resume(Fibre& fibre) {
  void* fake_stack;
  current = &fibre;
  __sanitizer_start_switch_fiber(&fake_stack, fibre.stack, STACK);
  emu_switch(&scheduler, &fibre.context);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

static void make_ready(int number) {
  fibres[number].wait = NOTHING;
  ready[waiting_to_run++] = number;
}

void pause() {
  make_ready(current->number);
  to_scheduler();
}

void set_atomic(bool on) { atomic = on; }

void barrier(int line) {
  me().wait = BLOCK;
  me().line = line;
  to_scheduler();
}

uint64_t meet(Wait kind, unsigned mask, uint64_t value, int source, int line) {
  Fibre& fibre = me();
  fibre.wait = kind, fibre.mask = mask, fibre.value = value, fibre.source = source, fibre.line = line;
  if (!(mask >> fibre.number % WARP_SIZE & 1))
    say("thread %d is not in the mask 0x%x of line %d", fibre.number, mask, line);
  to_scheduler();
  return fibre.value;
}

struct Product {
  int k;
  char of_a, of_b;
  const uint32_t *a, *b, *c;
  uint32_t* d;
};

void multiply(int k, char of_a, char of_b, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d, int line) {
  Product own = {k, of_a, of_b, a, b, c, d};
  meet(PRODUCT, ~0u, uint64_t(&own), int(uintptr_t(__builtin_return_address(0))), line);
}

// The product of the fragments of all lanes, by the layouts of the PTX manual: lane 4g + q has of A the rows g and g + 8, of B the column g,
// each at k = 4q … 4q + 3 and 16 more; of C the columns 2q and 2q + 1 of those rows.
static void multiply_all(const uint64_t* values) {
  const Product& one = *reinterpret_cast<const Product*>(values[0]);
  auto element = [](uint32_t word, int byte, char kind) { return kind == 's' ? int(int8_t(word >> 8 * byte)) : int(uint8_t(word >> 8 * byte)); };
  int a[16][32], b[8][32];
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const Product& own = *reinterpret_cast<const Product*>(values[lane]);
    for (int part = 0; part < one.k / 16; part++)
      for (int byte = 0; byte < 4; byte++) {
        const int g = lane / 4, at = 16 * part + lane % 4 * 4 + byte;
        a[g][at] = element(own.a[2 * part], byte, one.of_a);
        a[g + 8][at] = element(own.a[2 * part + 1], byte, one.of_a);
        b[g][at] = element(own.b[part], byte, one.of_b);
      }
  }
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const Product& own = *reinterpret_cast<const Product*>(values[lane]);
    for (int i = 0; i < 4; i++) {
      const int *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
      int sum = 0;
      for (int at = 0; at < one.k; at++) sum += row[at] * column[at];
      own.d[i] = own.c[i] + uint32_t(sum);
    }
  }
}

char* dynamic_memory() { return dynamic; }

constexpr unsigned FIXED = 1u << 31;  // addresses of arrays of fixed size begin here, those of dynamic memory at 0

unsigned shared_address(const void* at) {
  const char* byte = static_cast<const char*>(at);
  if (byte >= dynamic && byte < dynamic + dynamic_bytes) return byte - dynamic;
  if (byte >= __start_emu_shared && byte < __stop_emu_shared) return FIXED + (byte - __start_emu_shared);
  say("thread %d takes an address of other memory for one of shared memory", current->number);
  to_scheduler();
  return 0;
}

#ifdef EMU_RACES
static void copies(const Copy& copy, bool begins);
#else
static void copies(const Copy&, bool) {}
#endif

void copy_later(unsigned to, const void* from, int bytes) {
  char* at = to >= FIXED ? __start_emu_shared + (to - FIXED) : dynamic + to;
  if ((uintptr_t(at) | uintptr_t(from)) % bytes) say("thread %d copies %d bytes from or to an address that is no multiple", current->number, bytes);
  Copy copy = {at, from, bytes, me().groups, false};
  copies(copy, true);
  copy.done = shuffled && draw(2);
  if (copy.done) memcpy(at, from, bytes);
  else memset(at, PATTERN, bytes);
  me().copies.push_back(copy);
}

void commit_copies() { me().groups++; }

void wait_for_copies(int groups_left) {
  std::vector<Copy> rest;
  for (const Copy& copy : me().copies) {
    if (copy.group >= me().groups - groups_left) {
      rest.push_back(copy);
      continue;
    }
    if (!copy.done) memcpy(copy.to, copy.from, copy.bytes);
    copies(copy, false);
  }
  me().copies.swap(rest);
}

void wait_for_all_copies() {
  commit_copies();
  wait_for_copies(0);
}

// Lets the lanes go on that wait for each other, if all of them have come. Lanes that have finished are not waited for.
static void release_warp(int number) {
  Fibre& one = fibres[number];
  if (one.done || one.wait < WARP) return;
  int first = number / WARP_SIZE * WARP_SIZE;
  unsigned here = 0, votes = 0;
  uint64_t values[WARP_SIZE];
  for (int lane = 0; lane < WARP_SIZE && first + lane < threads; lane++) {
    Fibre& other = fibres[first + lane];
    if (!(one.mask >> lane & 1) || other.done) continue;
    if (other.wait != one.wait || other.line != one.line || other.mask != one.mask) return;
    if (one.wait == PRODUCT && other.source != one.source) return;
    here |= 1u << lane;
    values[lane] = other.value;
    votes |= unsigned(other.value & 1) << lane;
  }
  if (one.wait == PRODUCT) {
    if (here != ~0u) return say("line %d: lanes 0x%x do not multiply with the others of their warp", one.line, ~here);
    multiply_all(values);
  }
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (!(here >> lane & 1)) continue;
    Fibre& other = fibres[first + lane];
    if (other.wait == BALLOT) other.value = votes;
    if (other.wait == SHUFFLE) {
      if (!(here >> other.source & 1)) return say("line %d: lane %d reads from lane %d, which takes no part", one.line, lane, other.source);
      other.value = values[other.source];
    }
    other.warp_barriers += other.wait == WARP;
    make_ready(first + lane);
  }
}

// Lets all threads go on if all of them wait at one barrier. Says what they wait for otherwise.
static void release_block() {
  int waiting = -1;
  for (int i = 0; i < threads && !failed; i++) {
    Fibre& fibre = fibres[i];
    if (fibre.done) continue;
    if (fibre.wait != BLOCK) return say("thread %d waits at line %d for lanes of the mask 0x%x that do not come", i, fibre.line, fibre.mask);
    if (waiting >= 0 && fibres[waiting].line != fibre.line)
      return say("threads %d and %d wait at different barriers, lines %d and %d", waiting, i, fibres[waiting].line, fibre.line);
    waiting = i;
  }
  if (finished) return say("thread %d waits at the barrier of line %d, %d threads have finished", waiting, fibres[waiting].line, finished);
  for (int i = 0; i < threads; i++) {
    fibres[i].barriers++;
    make_ready(i);
  }
}

static void run_block() {
  if (__start_emu_shared) memset(__start_emu_shared, PATTERN, __stop_emu_shared - __start_emu_shared);
  if (dynamic_bytes) {  // memory of its own for each block: the next one must not find what this one leaves
    void* memory;
    if (posix_memalign(&memory, 256, dynamic_bytes)) return say("no %ld bytes of dynamic memory", dynamic_bytes);
    dynamic = static_cast<char*>(memory);
    memset(dynamic, PATTERN, dynamic_bytes);
  }
  finished = waiting_to_run = 0;
  for (int i = 0; i < threads; i++) {
    Fibre& fibre = fibres[i];
    fibre.index = {unsigned(i), 0, 0};
    fibre.number = i;
    fibre.done = false;
    fibre.copies.clear();
    fibre.groups = fibre.barriers = fibre.warp_barriers = 0;
    prepare(fibre.context, fibre.stack, STACK, run_thread);
    make_ready(i);
  }
  while (finished < threads && !failed) {
    int at = shuffled ? draw(waiting_to_run) : 0;
    int number = ready[at];
    if (shuffled) {
      ready[at] = ready[--waiting_to_run];
    } else {
      memmove(ready + at, ready + at + 1, (--waiting_to_run - at) * sizeof *ready);
    }
    resume(fibres[number]);
    if (failed) break;
    finished += fibres[number].done;
    if (fibres[number].done) {
      for (int lane = number / WARP_SIZE * WARP_SIZE; lane < threads && lane / WARP_SIZE == number / WARP_SIZE; lane++) release_warp(lane);
    } else {
      release_warp(number);
    }
    if (!waiting_to_run && finished < threads && !failed) release_block();
  }
  current = nullptr;
  free(dynamic);
  dynamic = nullptr;
}

int launch(const Kernel& called, const Any* given, int count, Any* result) {
  kernel = &called;
  arguments = given;
  failed = false;
  message[0] = 0;
  block_index = {0, 0, 0};
  result->type = 0;
  result->integer = 0;
  long fixed = __stop_emu_shared - __start_emu_shared;
  if (count != called.parameters + 2 + called.dynamic) {
    say("%d arguments, of which %d are the kernel's: the emulator knows blockIdx.x, threadIdx.x and dynamic memory", count, called.parameters);
    return 0;
  }
  long grid = given[called.parameters].integer, block = given[called.parameters + 1].integer;
  dynamic_bytes = called.dynamic ? given[called.parameters + 2].integer : 0;
  last.grid = grid, last.block = block, last.dynamic = dynamic_bytes, last.parameters = called.parameters, last.name = called.name;
  for (int i = 0; i < called.parameters && i < 64; i++) last.arguments[i] = given[i];
  if (grid < 1 || grid > 0x7fffffffL) say("%ld blocks, of 1 to 2^31 - 1", grid);
  if (block < 1 || block > MOST_THREADS || (called.bounds && block > called.bounds))
    say("%ld threads in a block, of at most %d", block, called.bounds ? called.bounds : MOST_THREADS);
  if (fixed > STATIC_LIMIT) say("%ld bytes of shared arrays of fixed size, of at most %ld", fixed, STATIC_LIMIT);
  if (fixed + dynamic_bytes > DYNAMIC_LIMIT) say("%ld bytes of shared memory in a block, of at most %ld", fixed + dynamic_bytes, DYNAMIC_LIMIT);
  if (failed) return 0;
  // Of this launch only: each kernel has a library and so fibres of its own, and a process may have too little memory for all their stacks.
  void* stacks = mmap(nullptr, block * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    say("no memory for the stacks of %ld threads", block);
    return 0;
  }
  for (long i = 0; i < block; i++) fibres[i].stack = static_cast<char*>(stacks) + i * STACK;
  threads = block;
  block_size = {unsigned(block), 1, 1};
  grid_size = {unsigned(grid), 1, 1};
  uint64_t step = 1, at = 0;  // blocks in the order at, at + step, …: each once, since the step shares no divisor with their number
  if (shuffled && grid > 2) {
    at = draw(grid);
    for (;;) {
      uint64_t a = grid, b = step = 1 + draw(grid - 1);
      while (b) { uint64_t rest = a % b; a = b; b = rest; }
      if (a == 1) break;
    }
  }
  for (long i = 0; i < grid && !failed; i++, at = (at + step) % grid) {
    block_index.x = at;
    run_block();
  }
  munmap(stacks, block * STACK);
  return 0;
}
}  // namespace emu

extern "C" {
void emu_seed(uint64_t seed) { emu::shuffled = seed != 0; emu::state = seed; }  // 0: in order
const char* emu_error() { return emu::message; }
const void* emu_last() { return &emu::last; }
int __tvm_ffi___tvm_set_device(void*, const emu::Any*, int32_t, emu::Any* result) { result->type = 0; result->integer = 0; return 0; }
}

#ifdef EMU_RACES
#include "races.inc"
#endif
