// What the test programs have in common: a count of checks, and a list of tests.
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "portcullis.h"

static unsigned passed;
static unsigned failed;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (condition) {                                                                           \
            passed++;                                                                              \
        } else {                                                                                   \
            failed++;                                                                              \
            fprintf(stderr, "%s:%d: %s: not %s\n", __FILE__, __LINE__, __func__, #condition);      \
        }                                                                                          \
    } while (0)

// Compares a status with the expected one.
#define STATUS(expected, call)                                                                     \
    do {                                                                                           \
        int status = (call);                                                                       \
        if (status == (expected)) {                                                                \
            passed++;                                                                              \
        } else {                                                                                   \
            failed++;                                                                              \
            fprintf(stderr, "%s:%d: %s: %s is %d, %s, not %s\n", __FILE__, __LINE__, __func__,     \
                    #call, status, pc_status_text(status), #expected);                             \
        }                                                                                          \
    } while (0)

// Prints the total, and returns the status of the program.
static inline int ended(void) {
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}

#endif
