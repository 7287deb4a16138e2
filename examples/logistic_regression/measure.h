/* Helps the programs that are processes: reads their arguments and prints their measurements, alike for all. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>

/* Seconds since some moment. */
double now(void);

/* An argument that is a number of samples or steps; if it is none the process ends and says so. */
uint64_t number(const char *text);

/* Memory, which counts; if there is none the process ends and says so. */
void *memory(uint64_t bytes, uint64_t *peak);

/* Says how long it took and how much memory it had, as JSON, on standard error. */
void said(double seconds, uint64_t peak);

#endif
