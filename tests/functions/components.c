/* Components of graphs that share memory. Numbers are 64-bit integers of this machine. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../crates/capi/include/sublet_function.h"

static uint32_t failed(sublet_context *context) { return sublet_fail(context, sublet_why(context)); }

static uint32_t answer(void *out, uint64_t number) {
    memcpy(out, &number, sizeof number);
    return sizeof number;
}

static void nap(uint64_t ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* Writes 1, 2, ... up to this into "numbers", a page at a time. */
static uint32_t count_to(uint64_t count, sublet_channel numbers, sublet_context *context,
                         uint32_t (*write)(sublet_context *, sublet_channel, uint64_t, const void *, uint64_t)) {
    uint64_t page[512];
    for (uint64_t at = 0; at < count; at += 512) {
        uint64_t n = count - at < 512 ? count - at : 512;
        for (uint64_t i = 0; i < n; i++) page[i] = at + i + 1;
        uint32_t code = write(context, numbers, at * 8, page, n * 8);
        if (code) return code;
    }
    return 0;
}

/* Puts the number of cores on which this thread may run behind the pointer. */
static void *count_cores(void *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    *(uint64_t *)cores = sched_getaffinity(0, sizeof set, &set) ? 0 : (uint64_t)CPU_COUNT(&set);
    return NULL;
}

/* Answers on how many cores a thread that it starts may run. Waits before for as many milliseconds as its first byte
 * says. */
SUBLET_FUNCTION uint32_t cores(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t count = 0;
    pthread_t thread;
    nap(size ? *(uint8_t *)in : 0);
    if (pthread_create(&thread, NULL, count_cores, &count)) return sublet_fail(context, "no thread starts");
    pthread_join(thread, NULL);
    return answer(out, count);
}

/* Answers with the number of its instance and with how many there are, 32 bits each. */
SUBLET_FUNCTION uint32_t who(void *in, uint32_t size, void *out, sublet_context *context) {
    uint32_t told[2] = {sublet_instance(context), sublet_instances(context)};
    (void)in, (void)size;
    memcpy(out, told, sizeof told);
    return sizeof told;
}

/* Makes "numbers" a page long, or two pages from the time on that its input says in milliseconds since 1970. */
SUBLET_FUNCTION uint32_t swell(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t until_ms, now_ms;
    struct timespec now;
    sublet_channel numbers;
    if (size != sizeof until_ms) return sublet_fail(context, "until when?");
    memcpy(&until_ms, in, sizeof until_ms);
    clock_gettime(CLOCK_REALTIME, &now);
    now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (sublet_channel_open(context, "numbers", &numbers) ||
        sublet_channel_grow(context, numbers, now_ms < until_ms ? 4096 : 8192))
        return failed(context);
    return answer(out, until_ms);
}

/* Like "who", after a second. */
SUBLET_FUNCTION uint32_t who_later(void *in, uint32_t size, void *out, sublet_context *context) {
    nap(1000);
    return who(in, size, out, context);
}

/* Writes 1, 2, ... up to its input into "numbers"; hands on how many there are. */
SUBLET_FUNCTION uint32_t fill(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t count;
    sublet_channel numbers;
    if (size != sizeof count) return sublet_fail(context, "how many?");
    memcpy(&count, in, sizeof count);
    if (sublet_channel_open(context, "numbers", &numbers) || count_to(count, numbers, context, sublet_channel_write))
        return failed(context);
    return answer(out, count);
}

/* Writes like "fill", without waiting for the writes. */
SUBLET_FUNCTION uint32_t pour(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t count;
    sublet_channel numbers;
    if (size != sizeof count) return sublet_fail(context, "how many?");
    memcpy(&count, in, sizeof count);
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_grow(context, numbers, count * 8) ||
        count_to(count, numbers, context, sublet_channel_write_async))
        return failed(context);
    return answer(out, count);
}

/* Writes like "pour"; then makes "numbers" half as long, and as long as before. Hands on the sum of the numbers that
 * are left, with half a number. */
SUBLET_FUNCTION uint32_t halve(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t count, half, bytes, sum = 0, page[512];
    sublet_channel numbers;
    if (!pour(in, size, out, context)) return 0;
    memcpy(&count, in, sizeof count);
    half = count / 2 * 8 + 4;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_resize(context, numbers, half) ||
        sublet_channel_size(context, numbers, &bytes))
        return failed(context);
    if (bytes != half) return sublet_fail(context, "of another length than was said");
    if (!sublet_channel_read(context, numbers, half, page, 1)) return sublet_fail(context, "what is gone can be read");
    if (sublet_channel_resize(context, numbers, count * 8)) return failed(context);
    for (uint64_t at = 0; at < count; at += 512) {
        uint64_t n = count - at < 512 ? count - at : 512;
        if (sublet_channel_read(context, numbers, at * 8, page, n * 8)) return failed(context);
        for (uint64_t i = 0; i < n; i++) sum += page[i];
    }
    return answer(out, sum);
}

/* After a second, makes "numbers" half as long. Hands on its input. */
SUBLET_FUNCTION uint32_t cut(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t bytes;
    sublet_channel numbers;
    nap(1000);
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_size(context, numbers, &bytes) ||
        sublet_channel_resize(context, numbers, bytes / 2))
        return failed(context);
    memcpy(out, in, size);
    return size;
}

/* Writes the result of a call: its code, and the error's text. */
static uint32_t told(void *out, uint32_t code, sublet_context *context) {
    uint32_t len = code ? (uint32_t)strlen(sublet_why(context)) : 0;
    memcpy(out, &code, sizeof code);
    memcpy((char *)out + sizeof code, sublet_why(context), len);
    return (uint32_t)sizeof code + len;
}

/* Has 3 MiB of "numbers", makes them shorter or releases them, if its first byte says so, and tells what comes of 3 MiB more, of
 * "spare". */
SUBLET_FUNCTION uint32_t cede(void *in, uint32_t size, void *out, sublet_context *context) {
    enum { BYTES = 3 << 20 };
    sublet_channel numbers, spare;
    uint32_t code = 0;
    if (!size || sublet_channel_open(context, "numbers", &numbers) || sublet_channel_open(context, "spare", &spare) ||
        sublet_channel_write(context, numbers, BYTES - 1, "", 1))
        return failed(context);
    switch (*(char *)in) {
        case 's': code = sublet_channel_resize(context, numbers, 1); break;
        case 'r': code = sublet_channel_release(context, numbers); break;
    }
    if (code) return failed(context);
    return told(out, sublet_channel_grow(context, spare, BYTES), context);
}

/* Adds up its share of "numbers", in place, and puts the sum into its place of "sums". */
SUBLET_FUNCTION uint32_t share(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t bytes, sum = 0, me = sublet_instance(context), all = sublet_instances(context);
    sublet_channel numbers, sums;
    void *mapped;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_open(context, "sums", &sums) ||
        sublet_channel_size(context, numbers, &bytes) || sublet_channel_map(context, numbers, 0, bytes, &mapped))
        return failed(context);
    const uint64_t *number = mapped;
    for (uint64_t i = me; i < bytes / 8; i += all) sum += number[i];
    if (sublet_channel_write(context, sums, me * 8, &sum, sizeof sum)) return failed(context);
    return answer(out, sum);
}

/* Adds like "share" numbers that may be anywhere: two parts are on their way while one is added up. */
SUBLET_FUNCTION uint32_t gather(void *in, uint32_t size, void *out, sublet_context *context) {
    enum { PART = 1 << 14 };
    static _Thread_local uint64_t part[2][PART];
    uint64_t bytes, sum = 0, me = sublet_instance(context), all = sublet_instances(context);
    sublet_channel numbers, sums;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_open(context, "sums", &sums) ||
        sublet_channel_size(context, numbers, &bytes))
        return failed(context);
    uint64_t count = bytes / 8, begin = count * me / all, end = count * (me + 1) / all;
    for (uint64_t at = begin; at < end; at += 2 * PART) {
        uint64_t left = end - at, first = left < PART ? left : PART;
        uint64_t second = left - first < PART ? left - first : PART;
        if (sublet_channel_read_async(context, numbers, at * 8, part[0], first * 8) ||
            sublet_channel_read_async(context, numbers, (at + first) * 8, part[1], second * 8) ||
            sublet_channel_prefetch(context, numbers, (at + first + second) * 8, sizeof part) ||
            sublet_channel_sync(context, numbers))
            return failed(context);
        for (uint64_t i = 0; i < first; i++) sum += part[0][i];
        for (uint64_t i = 0; i < second; i++) sum += part[1][i];
    }
    if (sublet_channel_write(context, sums, me * 8, &sum, sizeof sum)) return failed(context);
    return answer(out, sum);
}

/* Adds up what the shares have handed on, each behind its length; it must be what stands in "sums". */
SUBLET_FUNCTION uint32_t total(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t parts = size / 16, sum = 0, sums_bytes;
    const uint64_t *part = in;
    sublet_channel sums;
    if (size == 8) return answer(out, *part);
    if (sublet_channel_open(context, "sums", &sums) || sublet_channel_size(context, sums, &sums_bytes))
        return failed(context);
    if (sums_bytes != parts * 8) return sublet_fail(context, "the sums are not all there");
    for (uint64_t i = 0; i < parts; i++) {
        uint64_t stored;
        if (part[2 * i] != 8) return sublet_fail(context, "a part of another length");
        if (sublet_channel_read(context, sums, i * 8, &stored, sizeof stored)) return failed(context);
        if (stored != part[2 * i + 1]) return sublet_fail(context, "a sum that is not the share's");
        sum += stored;
    }
    return answer(out, sum);
}

enum { PATIENCE_MS = 60000, WINDOW = 32, LEASE_ENDED = 33 };

/* Message that "ask" sends: a number, and a number of equal bytes that depends on it. */
static uint64_t letter(uint64_t number, uint8_t *to) {
    uint64_t more = number * 37 % 3000;
    memcpy(to, &number, sizeof number);
    memset(to + sizeof number, (int)(number & 0xff), more);
    return sizeof number + more;
}

/* Sends 1, 2, ... up to its input to all of "tell" in turn, and adds up the squares that come back. */
SUBLET_FUNCTION uint32_t ask(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t count, sum = 0, square, got;
    uint8_t sent[4096];
    if (size != sizeof count) return sublet_fail(context, "how many?");
    memcpy(&count, in, sizeof count);
    for (uint64_t i = 1, open = 0; i <= count || open; i++) {
        if (i <= count) {
            if (sublet_send(context, "tell", 0, sent, letter(i, sent), PATIENCE_MS)) return failed(context);
            open++;
        }
        while (open && (open == WINDOW || i >= count)) {
            if (sublet_receive(context, "tell", &square, sizeof square, PATIENCE_MS, &got, NULL)) return failed(context);
            if (got != sizeof square) return sublet_fail(context, "an answer of another size");
            sum += square, open--;
        }
    }
    return answer(out, sum);
}

/* Answers "ask" until that has ended; hands on how often. */
SUBLET_FUNCTION uint32_t tell(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t times = 0, number, got;
    uint8_t came[4096], expected[4096];
    uint32_t from, code;
    (void)in, (void)size;
    while (!(code = sublet_receive(context, "ask", came, sizeof came, PATIENCE_MS, &got, &from))) {
        memcpy(&number, came, sizeof number);
        if (got != letter(number, expected) || memcmp(came, expected, got))
            return sublet_fail(context, "a letter that component ask has not sent");
        number *= number, times++;
        if (sublet_send(context, "ask", from, &number, sizeof number, PATIENCE_MS)) return failed(context);
    }
    return code == LEASE_ENDED ? answer(out, times) : failed(context);
}

/* Does to "tell" what its first byte says: it is to fail. */
SUBLET_FUNCTION uint32_t pester(void *in, uint32_t size, void *out, sublet_context *context) {
    static uint8_t large[SUBLET_MAX_MESSAGE_BYTES + 1];
    uint32_t code = 0;
    uint64_t need = 0;
    if (!size) return sublet_fail(context, "what?");
    switch (*(char *)in) {
        case 'n': code = sublet_send(context, "absent", 0, large, 1, 0); break;
        case 'i': code = sublet_send(context, "tell", 7, large, 1, 0); break;
        case 'l': code = sublet_send(context, "tell", 0, large, sizeof large, 0); break;
        case 'w': code = sublet_receive(context, "tell", large, sizeof large, 20, NULL, NULL); break;
        case 's':
            code = sublet_receive(context, "tell", large, 3, PATIENCE_MS, &need, NULL);
            if (need != 5 || sublet_receive(context, "tell", large, 5, 0, &need, NULL) || memcmp(large, "hello", 5))
                return sublet_fail(context, "the message is gone");
            break;
        case 'f':
            while (!code) code = sublet_send(context, "tell", 0, large, SUBLET_MAX_MESSAGE_BYTES, 20);
            break;
    }
    return told(out, code, context);
}

/* Greets "pester", and waits for its end. */
SUBLET_FUNCTION uint32_t greet(void *in, uint32_t size, void *out, sublet_context *context) {
    static uint8_t room[SUBLET_MAX_MESSAGE_BYTES];
    (void)size;
    if (*(char *)in == 's' && sublet_send(context, "pester", 0, "hello", 5, PATIENCE_MS)) return failed(context);
    if (*(char *)in == 'f') nap(500);
    while (!sublet_receive(context, "pester", room, sizeof room, PATIENCE_MS, NULL, NULL)) continue;
    return (void)out, 0;
}

/* Hands on its input, after a delay in milliseconds that is the input's first byte. */
SUBLET_FUNCTION uint32_t later(void *in, uint32_t size, void *out) {
    if (size) nap(*(uint8_t *)in);
    memcpy(out, in, size);
    return size;
}

/* Answers with as many bytes as the second of the two 64-bit numbers at the beginning of its input says. The first is the
 * size of the input. The answer begins with both numbers in the other order, so the inputs in a chain have these two sizes
 * in turn. */
SUBLET_FUNCTION uint32_t alternate(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t sizes[2], swapped[2];
    if (size < sizeof sizes) return sublet_fail(context, "which two sizes?");
    memcpy(sizes, in, sizeof sizes);
    if (sizes[0] != size) return sublet_fail(context, "an input of another size than it says");
    if (sizes[1] < sizeof sizes || sizes[1] > sublet_capacity(context)) return sublet_fail(context, "no size of an output");
    swapped[0] = sizes[1], swapped[1] = sizes[0];
    memset(out, 0, sizes[1]);
    memcpy(out, swapped, sizeof swapped);
    return (uint32_t)sizes[1];
}

/* Answers with the bytes of "shown". */
SUBLET_FUNCTION uint32_t show(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel shown;
    uint64_t bytes;
    (void)in, (void)size;
    if (sublet_channel_open(context, "shown", &shown) || sublet_channel_size(context, shown, &bytes))
        return failed(context);
    if (bytes > sublet_capacity(context)) return sublet_fail(context, "more bytes than an output has");
    if (sublet_channel_read(context, shown, 0, out, bytes)) return failed(context);
    return (uint32_t)bytes;
}

/* Writes into "numbers" in place, where others have written, which it may do if its edge says so. */
SUBLET_FUNCTION uint32_t scribble(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel numbers;
    void *mapped;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_map(context, numbers, 0, 8, &mapped))
        return failed(context);
    *(volatile uint64_t *)mapped = 1;
    memcpy(out, "done", 4);
    return 4;
}

/* Tries to get more than its edge gives: to make what is mapped writable, and to open anew what it has open. Counts what it got. */
SUBLET_FUNCTION uint32_t seize(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel numbers;
    void *mapped;
    uint64_t got = 0;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_map(context, numbers, 0, 8, &mapped))
        return failed(context);
    void *page = (void *)((uintptr_t)mapped & ~(uintptr_t)4095);
    got += mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0;
    for (int fd = 3; fd < 1024; fd++) {
        char path[32], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) < 0 || !strstr(name, "sublet-channel")) continue;
        got += mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
        got += open(path, O_RDWR) >= 0;
    }
    return answer(out, got);
}

/* Hands on what it has got, after two seconds. */
SUBLET_FUNCTION uint32_t linger(void *in, uint32_t size, void *out) {
    nap(2000);
    memcpy(out, in, size);
    return size;
}

/* Ends long after any test. */
SUBLET_FUNCTION uint32_t stay(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    nap(600000);
    return 0;
}

SUBLET_FUNCTION uint32_t crash(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    *(volatile int *)0 = 1;
    return *(uint8_t *)out;
}

/* Does to "numbers" what its first byte says, with the numbers behind: it is to fail. */
SUBLET_FUNCTION uint32_t abuse(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t at[2] = {0, 0}, number = 0;
    sublet_channel numbers = 0;
    void *mapped;
    uint32_t code = 0;
    if (size != 17) return sublet_fail(context, "what, and where?");
    memcpy(at, (char *)in + 1, sizeof at);
    char what = *(char *)in;
    if (what != 'u') code = sublet_channel_open(context, what == 'x' ? "nothing" : "numbers", &numbers);
    if (!code) switch (what) {
        case 'r': code = sublet_channel_read(context, numbers, at[0], &number, sizeof number); break;
        case 'w': code = sublet_channel_write(context, numbers, at[0], &number, sizeof number); break;
        case 'g': code = sublet_channel_grow(context, numbers, at[0]); break;
        case 'm': code = sublet_channel_map(context, numbers, at[0], at[1], &mapped); break;
        case 'a': code = sublet_channel_write_async(context, numbers, at[0], &number, sizeof number); break;
        case 's': code = sublet_channel_resize(context, numbers, at[0]); break;
        case 'e':
            if (sublet_channel_write(context, numbers, 0, &number, sizeof number) ||
                sublet_channel_read_async(context, numbers, 0, at, sizeof number) ||
                sublet_channel_release(context, numbers))
                return failed(context);
            code = sublet_channel_read(context, numbers, 0, &number, sizeof number);
            if (sublet_channel_release(context, numbers) != code || sublet_channel_open(context, "numbers", &numbers) != code)
                return sublet_fail(context, "what was released can be had again");
            break;
        case 'n': code = sublet_channel_read(context, numbers, 0, NULL, 8); break;
        case 'u': code = sublet_channel_read(context, 7, 0, &number, sizeof number); break;
    }
    return told(out, code, context);
}

/* Accesses "numbers" for as long as "trim" has it do so. */
SUBLET_FUNCTION uint32_t hold(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel numbers;
    uint64_t number = 7;
    (void)in, (void)size, (void)out;
    if (sublet_channel_open(context, "numbers", &numbers) ||
        sublet_channel_write(context, numbers, 0, &number, sizeof number) ||
        sublet_send(context, "trim", 0, "", 0, PATIENCE_MS) ||
        sublet_receive(context, "trim", NULL, 0, PATIENCE_MS, NULL, NULL) || sublet_channel_release(context, numbers) ||
        sublet_send(context, "trim", 0, "", 0, PATIENCE_MS))
        return failed(context);
    while (!sublet_receive(context, "trim", NULL, 0, PATIENCE_MS, NULL, NULL)) continue;
    return 0;
}

/* Makes "numbers" shorter while "hold" accesses it, of which it tells, and when that does not any more. */
SUBLET_FUNCTION uint32_t trim(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel numbers;
    uint32_t number = 0, len;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) ||
        sublet_receive(context, "hold", NULL, 0, PATIENCE_MS, NULL, NULL))
        return failed(context);
    len = told(out, sublet_channel_resize(context, numbers, 1), context);
    if (sublet_send(context, "hold", 0, "", 0, PATIENCE_MS) ||
        sublet_receive(context, "hold", NULL, 0, PATIENCE_MS, NULL, NULL) ||
        sublet_channel_resize(context, numbers, 1) || sublet_channel_read(context, numbers, 0, &number, 1))
        return failed(context);
    return number == 7 ? len : sublet_fail(context, "what was left is another number");
}

/* Waits until another instance has written this byte of "flags". */
static uint32_t await_flag(uint64_t at, sublet_channel flags, sublet_context *context) {
    for (uint8_t flag = 0; flag != 1; nap(1)) {
        uint64_t bytes;
        uint32_t code = sublet_channel_size(context, flags, &bytes);
        if (!code && bytes > at) code = sublet_channel_read(context, flags, at, &flag, 1);
        if (code) return code;
    }
    return 0;
}

/* Two instances access "numbers". The first tells what comes of making it shorter, and releases it; the second still has it. */
SUBLET_FUNCTION uint32_t both(void *in, uint32_t size, void *out, sublet_context *context) {
    sublet_channel numbers, flags;
    uint64_t number = 7;
    uint32_t len;
    (void)in, (void)size;
    if (sublet_channel_open(context, "numbers", &numbers) || sublet_channel_open(context, "flags", &flags))
        return failed(context);
    if (sublet_instance(context) == 0) {
        if (await_flag(0, flags, context)) return failed(context);
        len = told(out, sublet_channel_resize(context, numbers, 1), context);
        if (sublet_channel_release(context, numbers) || sublet_channel_write(context, flags, 1, "\1", 1))
            return failed(context);
        return len;
    }
    if (sublet_channel_write(context, numbers, 0, &number, sizeof number) ||
        sublet_channel_write(context, flags, 0, "\1", 1) || await_flag(1, flags, context))
        return failed(context);
    number = 0;
    if (sublet_channel_read(context, numbers, 0, &number, sizeof number)) return failed(context);
    return answer(out, number);
}

/* Takes memory for itself, in MiB the first byte of its input, has it for 600 ms, and hands on its input. */
SUBLET_FUNCTION uint32_t hoard(void *in, uint32_t size, void *out, sublet_context *context) {
    uint64_t bytes = size ? (uint64_t)*(uint8_t *)in << 20 : 0;
    uint8_t *memory = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (memory == MAP_FAILED) return sublet_fail(context, "there is not so much");
    for (uint64_t at = 0; at < bytes; at += 4096) *(volatile uint8_t *)(memory + at) = 1;
    nap(600);
    if (bytes) munmap(memory, bytes);
    memcpy(out, in, size);
    return size;
}
