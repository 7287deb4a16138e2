/* Helps the programs that are processes: reads their arguments and prints their measurements, alike for all. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>

/* Seconds since some moment. */
double now(void);

/* Parses an argument that is a number of samples or steps. Prints an error and ends the process if it is not valid. */
uint64_t number(const char *text);

/* Allocates memory and adds its size to the peak. Prints an error and ends the process if there is not enough. */
void *memory(uint64_t bytes, uint64_t *peak);

/* Prints the seconds and the peak memory, as JSON, on standard error. */
void said(double seconds, uint64_t peak);

#endif
