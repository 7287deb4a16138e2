/* The stages of the chains: each transforms text to text, or a picture to a picture.
 *
 * The assistant (after the Alexa skill of ServerlessBench, which Molecule chains): front end, dialogue, home, door, light. Words (a
 * map-reduce of three): split, map, reduce. A picture: resize, compress. */

#include "stages.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A buffer that text is appended to; text beyond STAGE_BYTES is cut. */
struct text {
    char *at;
    size_t len;
};

static void append(struct text *text, const char *from, size_t len) {
    if (len > STAGE_BYTES - text->len) len = STAGE_BYTES - text->len;
    memcpy(text->at + text->len, from, len);
    text->len += len;
}

static void say(struct text *text, const char *what) { append(text, what, strlen(what)); }

/* Returns the next word and its length, or NULL at the end of the text. */
static const char *next_word(const char **at, const char *end, size_t *len) {
    while (*at < end && !isalnum((unsigned char)**at)) ++*at;
    const char *begin = *at;
    while (*at < end && isalnum((unsigned char)**at)) ++*at;
    *len = (size_t)(*at - begin);
    return *len ? begin : NULL;
}

/* Writes the words in lower case between single spaces, without the word that wakes the assistant. */
uint32_t frontend(void *in, uint32_t size, void *out) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size, *word;
    size_t len;
    while ((word = next_word(&at, end, &len))) {
        if (len == 5 && !memcmp(word, "Alexa", 5)) continue;
        if (text.len) say(&text, " ");
        for (size_t i = 0; i < len; i++) append(&text, (char[]){(char)tolower((unsigned char)word[i])}, 1);
    }
    return (uint32_t)text.len;
}

static int is(const char *word, size_t len, const char *what) { return len == strlen(what) && !memcmp(word, what, len); }

/* Writes the requests: each line has a device and the state that it is to take. */
uint32_t dialogue(void *in, uint32_t size, void *out) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size, *word, *becomes = NULL;
    size_t len;
    while ((word = next_word(&at, end, &len))) {
        if (is(word, len, "open") || is(word, len, "on")) becomes = is(word, len, "on") ? "on" : "open";
        if (is(word, len, "close") || is(word, len, "off")) becomes = is(word, len, "off") ? "off" : "closed";
        if (becomes && (is(word, len, "door") || is(word, len, "light"))) {
            append(&text, word, len);
            say(&text, " ");
            say(&text, becomes);
            say(&text, "\n");
        }
    }
    return (uint32_t)text.len;
}

/* Prefixes each line with the location of the device. */
uint32_t home(void *in, uint32_t size, void *out) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        if (!line) break;
        say(&text, *at == 'd' ? "hall/" : "kitchen/");
        append(&text, at, (size_t)(line - at + 1));
        at = line + 1;
    }
    return (uint32_t)text.len;
}

/* Executes the requests for one device, and writes its new state in their place. */
static uint32_t device(void *in, uint32_t size, void *out, const char *name) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        const char *thing = memchr(at, '/', (size_t)(end - at));
        if (!line) break;
        if (thing && thing < line && !strncmp(thing + 1, name, strlen(name))) {
            say(&text, "the ");
            say(&text, name);
            say(&text, " is");
            append(&text, thing + 1 + strlen(name), (size_t)(line - thing - 1 - (ptrdiff_t)strlen(name)));
            say(&text, "\n");
        } else {
            append(&text, at, (size_t)(line - at + 1));
        }
        at = line + 1;
    }
    return (uint32_t)text.len;
}

uint32_t door(void *in, uint32_t size, void *out) { return device(in, size, out, "door"); }

uint32_t light(void *in, uint32_t size, void *out) { return device(in, size, out, "light"); }

/* Writes one word in each line, in lower case. */
uint32_t split(void *in, uint32_t size, void *out) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size, *word;
    size_t len;
    while ((word = next_word(&at, end, &len))) {
        for (size_t i = 0; i < len; i++) append(&text, (char[]){(char)tolower((unsigned char)word[i])}, 1);
        say(&text, "\n");
    }
    return (uint32_t)text.len;
}

enum { MOST_WORDS = STAGE_BYTES / 2 };

struct word {
    const char *at;
    size_t len;
};

static int by_text(const void *one, const void *other) {
    const struct word *a = one, *b = other;
    const int order = memcmp(a->at, b->at, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Writes each word once, with its count, in the order of words. */
uint32_t map(void *in, uint32_t size, void *out) {
    static struct word words[MOST_WORDS];
    struct text text = {out, 0};
    const char *at = in, *end = at + size;
    size_t count = 0;
    while (count < MOST_WORDS && (words[count].at = next_word(&at, end, &words[count].len))) count++;
    qsort(words, count, sizeof *words, by_text);
    for (size_t first = 0; first < count;) {
        size_t next = first + 1;
        char number[24];
        while (next < count && !by_text(&words[first], &words[next])) next++;
        append(&text, words[first].at, words[first].len);
        append(&text, number, (size_t)snprintf(number, sizeof number, " %zu\n", next - first));
        first = next;
    }
    return (uint32_t)text.len;
}

/* Writes the most frequent word, the first one of several, and its count. */
uint32_t reduce(void *in, uint32_t size, void *out) {
    struct text text = {out, 0};
    const char *at = in, *end = at + size, *word, *number;
    size_t len, digits;
    struct word most = {NULL, 0};
    unsigned long highest = 0;
    while ((word = next_word(&at, end, &len)) && (number = next_word(&at, end, &digits))) {
        unsigned long times = 0;
        for (size_t i = 0; i < digits; i++) times = times * 10 + (unsigned long)(number[i] - '0');
        if (times > highest) {
            highest = times;
            most = (struct word){word, len};
        }
    }
    char told[24];
    if (most.at) append(&text, most.at, most.len);
    append(&text, told, (size_t)snprintf(told, sizeof told, " %lu\n", highest));
    return (uint32_t)text.len;
}

/* A picture in grey: as many pixels across as down is a multiple of 4, at most 256 KiB together. */
struct picture {
    uint32_t width, height;
    uint8_t pixels[];
};

static int is_picture(const struct picture *picture, uint32_t size) {
    const uint64_t pixels = (uint64_t)picture->width * picture->height;
    return picture->width % 4 == 0 && picture->height % 4 == 0 && pixels <= PICTURE_BYTES - sizeof *picture
           && size == sizeof *picture + pixels;
}

/* Halves a picture's width and height by the mean of each four pixels. Writes nothing if the input is not a picture. */
uint32_t resize(void *in, uint32_t size, void *out) {
    const struct picture *from = in;
    struct picture *to = out;
    if (size < sizeof *from || !is_picture(from, size)) return 0;
    to->width = from->width / 2, to->height = from->height / 2;
    for (uint32_t y = 0; y < to->height; y++) {
        const uint8_t *above = from->pixels + (size_t)2 * y * from->width, *below = above + from->width;
        uint8_t *row = to->pixels + (size_t)y * to->width;
        for (uint32_t x = 0; x < to->width; x++)
            row[x] = (uint8_t)((above[2 * x] + above[2 * x + 1] + below[2 * x] + below[2 * x + 1] + 2) / 4);
    }
    return (uint32_t)sizeof *to + to->width * to->height;
}

/* Compresses a picture to a quarter of its bytes by block truncation (Delp and Mitchell, 1979), as kernels/compress.cl
 * does. For each block of 4 by 4 pixels it writes the mean of the pixels below the block's mean, the mean of the
 * others, and a bit for each pixel. */
uint32_t compress(void *in, uint32_t size, void *out) {
    const struct picture *from = in;
    struct picture *to = out;
    if (size < sizeof *from || !is_picture(from, size)) return 0;
    *to = *from;
    uint8_t *block = to->pixels;
    for (uint32_t y = 0; y < from->height; y += 4) {
        for (uint32_t x = 0; x < from->width; x += 4, block += 4) {
            const uint8_t *corner = from->pixels + (size_t)y * from->width + x;
            uint32_t sum = 0, low = 0, high = 0, bits = 0, count = 0;
            for (uint32_t at = 0; at < 16; at++) sum += corner[(size_t)(at / 4) * from->width + at % 4];
            for (uint32_t at = 0; at < 16; at++) {
                const uint32_t pixel = corner[(size_t)(at / 4) * from->width + at % 4];
                if (pixel * 16 >= sum) high += pixel, count++, bits |= 1u << at;
                else low += pixel;
            }
            block[0] = (uint8_t)(count == 16 ? 0 : low / (16 - count));
            block[1] = (uint8_t)(high / count);
            block[2] = (uint8_t)bits;
            block[3] = (uint8_t)(bits >> 8);
        }
    }
    return (uint32_t)(block - (uint8_t *)out);
}
