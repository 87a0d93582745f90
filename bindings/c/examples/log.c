// Log lines, limited: at most 5 at once, and 20 in a second.

#include <stdbool.h>
#include <stdio.h>

#include "portcullis.h"

// A part of the program that logs, and what became of its lines. Each has its own, so that an
// interrupt does not count in the middle of another count.
typedef struct log_source {
    uint32_t written;
    uint32_t dropped;
} log_source;

static pc_token_bucket limit;

static int log_init(void) {
    static const pc_token_bucket_settings settings = {
        .permits = 20,
        .period = PC_SECOND,
        .burst = 5,
    };
    return pc_token_bucket_init(&limit, sizeof limit, &settings);
}

// Whether a line may be logged at the time `now`, in nanoseconds.
static bool may_log(uint64_t now) {
    return pc_token_bucket_take(&limit, now, 1, NULL) == PC_OK;
}

static bool log_line(log_source *source, uint64_t now, const char *line) {
    if (!may_log(now)) {
        source->dropped++;
        return false;
    }
    source->written++;
    puts(line);
    return true;
}

int main(void) {
    int status = log_init();
    if (status != PC_OK) {
        puts(pc_status_text(status));
        return 1;
    }
    log_source source = {0};
    for (uint64_t millisecond = 0; millisecond < 200; millisecond++) {
        log_line(&source, millisecond * PC_MILLISECOND, "a line");
    }
    printf("%u lines written, %u dropped\n", source.written, source.dropped);
    // The burst of 5, and 3 that replenish: the next one after 200 ms.
    return source.written != 8;
}
