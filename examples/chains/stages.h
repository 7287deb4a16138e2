/* Declares the stages of the chains, and the sizes that the stages and their callers share. */

#ifndef STAGES_H
#define STAGES_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a stage's output, at most: of text, and of a picture. */
enum { STAGE_BYTES = 16384, PICTURE_BYTES = (1 << 18) + 8 };

uint32_t frontend(void *in, uint32_t size, void *out);
uint32_t dialogue(void *in, uint32_t size, void *out);
uint32_t home(void *in, uint32_t size, void *out);
uint32_t door(void *in, uint32_t size, void *out);
uint32_t light(void *in, uint32_t size, void *out);
uint32_t split(void *in, uint32_t size, void *out);
uint32_t map(void *in, uint32_t size, void *out);
uint32_t reduce(void *in, uint32_t size, void *out);
uint32_t resize(void *in, uint32_t size, void *out);
uint32_t compress(void *in, uint32_t size, void *out);

#endif
