// Each row of the table of mistakes in README.md, in its order: the name of a function is in the
// last column.

#include "check.h"

static const pc_token_bucket_settings SETTINGS = {.permits = 1, .period = PC_SECOND, .burst = 2};

static void null_storage(void) {
    pc_receipt receipt = {0};
    uint64_t number = 0;
    pc_detail detail;
    STATUS(PC_NULL, pc_token_bucket_init(NULL, sizeof(pc_token_bucket), &SETTINGS));
    STATUS(PC_NULL, pc_token_bucket_restore(NULL, sizeof(pc_token_bucket), &SETTINGS, 0));
    STATUS(PC_NULL, pc_token_bucket_state(NULL, &number));
    STATUS(PC_NULL, pc_token_bucket_take(NULL, 0, 1, &receipt));
    STATUS(PC_NULL, pc_token_bucket_look(NULL, 0, 1));
    STATUS(PC_NULL, pc_token_bucket_give_back(NULL, 0, 1, &receipt, NULL));
    STATUS(PC_NULL, pc_token_bucket_available(NULL, 0, &number));
    STATUS(PC_NULL, pc_token_bucket_retry(NULL, 0, 1, &number));
    STATUS(PC_NULL, pc_token_bucket_explain(NULL, 0, 1, &detail));
    STATUS(PC_NULL, pc_lease_pool_take(NULL, 0, 1, 0, &number));
    STATUS(PC_NULL, pc_lease_pool_give_back(NULL, 0, NULL));
    STATUS(PC_NULL, pc_lease_pool_sweep(NULL, 0, NULL));
    STATUS(PC_NULL, pc_bucket_table_take(NULL, "a", 1, 0, 1, NULL));
}

static void null_argument(void) {
    static pc_token_bucket bucket;
    STATUS(PC_NULL, pc_token_bucket_init(&bucket, sizeof bucket, NULL));
    STATUS(PC_NULL, pc_token_bucket_restore(&bucket, sizeof bucket, NULL, 0));
    STATUS(PC_NOT_INITIALISED, pc_token_bucket_look(&bucket, 0, 1));
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
    STATUS(PC_NULL, pc_token_bucket_state(&bucket, NULL));
    STATUS(PC_NULL, pc_token_bucket_give_back(&bucket, 0, 1, NULL, NULL));
    STATUS(PC_NULL, pc_token_bucket_available(&bucket, 0, NULL));
    STATUS(PC_NULL, pc_token_bucket_retry(&bucket, 0, 1, NULL));
    STATUS(PC_NULL, pc_token_bucket_explain(&bucket, 0, 1, NULL));

    static pc_lease_pool pool;
    static pc_lease_slot slots[1];
    STATUS(PC_NULL, pc_lease_pool_init(&pool, sizeof pool, NULL, sizeof slots, 1));
    STATUS(PC_OK, pc_lease_pool_init(&pool, sizeof pool, slots, sizeof slots, 1));
    STATUS(PC_NULL, pc_lease_pool_take(&pool, 0, 1, PC_NO_DEADLINE, NULL));
    STATUS(PC_OK, pc_lease_pool_look(&pool, 0, 1));

    static pc_bucket_table table;
    static pc_line lines[1];
    STATUS(PC_NULL,
           pc_bucket_table_init(&table, sizeof table, NULL, sizeof lines, &SETTINGS, 1, 2));
    STATUS(PC_NULL, pc_bucket_table_init(&table, sizeof table, lines, sizeof lines, NULL, 1, 2));
    STATUS(PC_OK,
           pc_bucket_table_init(&table, sizeof table, lines, sizeof lines, &SETTINGS, 1, 2));
    STATUS(PC_NULL, pc_bucket_table_take(&table, NULL, 0, 0, 1, NULL));
}

static void no_receipt_for_permits_that_must_return(void) {
    static pc_concurrency limit;
    STATUS(PC_OK, pc_concurrency_init(&limit, sizeof limit, 1));
    STATUS(PC_NULL, pc_concurrency_take(&limit, 0, 1, NULL));
    STATUS(PC_OK, pc_concurrency_look(&limit, 0, 1));
}

// Returns a pointer that is one byte off, as a cast in a program would make it.
static void *one_off(void *pointer) { return (char *)pointer + 1; }

static void misaligned(void) {
    static pc_token_bucket buckets[2];
    STATUS(PC_MISALIGNED,
           pc_token_bucket_init(one_off(buckets), sizeof(pc_token_bucket), &SETTINGS));
    STATUS(PC_MISALIGNED,
           pc_token_bucket_restore(one_off(buckets), sizeof(pc_token_bucket), &SETTINGS, 0));
    STATUS(PC_MISALIGNED, pc_token_bucket_take(one_off(buckets), 0, 1, NULL));
    STATUS(PC_OK, pc_token_bucket_init(buckets, sizeof buckets[0], &SETTINGS));
    static pc_receipt receipts[2];
    static uint64_t numbers[2];
    static pc_detail details[2];
    STATUS(PC_MISALIGNED, pc_token_bucket_take(buckets, 0, 1, one_off(receipts)));
    STATUS(PC_MISALIGNED, pc_token_bucket_state(one_off(buckets), numbers));
    STATUS(PC_MISALIGNED, pc_token_bucket_state(buckets, one_off(numbers)));
    STATUS(PC_MISALIGNED, pc_token_bucket_available(buckets, 0, one_off(numbers)));
    STATUS(PC_MISALIGNED, pc_token_bucket_retry(buckets, 0, 1, one_off(numbers)));
    STATUS(PC_MISALIGNED, pc_token_bucket_explain(buckets, 0, 1, one_off(details)));
    STATUS(PC_OK, pc_token_bucket_available(buckets, 0, numbers));
    CHECK(numbers[0] == 2);

    static pc_lease_pool pools[2];
    static pc_lease_slot slots[2];
    STATUS(PC_MISALIGNED,
           pc_lease_pool_init(one_off(pools), sizeof pools[0], slots, sizeof slots, 1));
    // As from an allocator that aligns for standard types only.
    STATUS(PC_MISALIGNED, pc_lease_pool_init((void *)((char *)pools + 16), sizeof pools[0], slots,
                                             sizeof slots, 1));
    STATUS(PC_MISALIGNED,
           pc_lease_pool_init(pools, sizeof pools[0], one_off(slots), sizeof slots[0], 1));
    static pc_bucket_table table;
    static pc_line lines[2];
    STATUS(PC_MISALIGNED, pc_bucket_table_init(&table, sizeof table, one_off(lines),
                                               sizeof lines[0], &SETTINGS, 1, 2));
}

static void too_small(void) {
    static pc_token_bucket bucket;
    STATUS(PC_TOO_SMALL, pc_token_bucket_init(&bucket, sizeof bucket - 1, &SETTINGS));
    STATUS(PC_TOO_SMALL, pc_token_bucket_init(&bucket, 0, &SETTINGS));
    // As with a header for 32-bit words and a library for 64-bit words.
    if (PC_WORD_BITS == 64) {
        STATUS(PC_TOO_SMALL, pc_token_bucket_init(&bucket, PC_TOKEN_BUCKET_SIZE_32, &SETTINGS));
    }
    static pc_lease_pool pool;
    static pc_lease_slot slots[1];
    STATUS(PC_TOO_SMALL, pc_lease_pool_init(&pool, sizeof pool - 1, slots, sizeof slots, 1));
    STATUS(PC_TOO_SMALL, pc_lease_pool_init(&pool, sizeof pool, slots, sizeof slots - 1, 1));
    static pc_window_table table;
    static pc_line lines[1];
    pc_fixed_window_settings settings = {.limit = 1, .window = 1};
    STATUS(PC_TOO_SMALL,
           pc_window_table_init(&table, sizeof table, lines, sizeof lines - 1, &settings, 1, 2));
}

static void not_initialised(void) {
    static pc_token_bucket bucket;
    static pc_fixed_window window;
    static pc_sliding_window sliding;
    static pc_concurrency limit;
    static pc_lease_pool pool;
    static pc_bucket_table buckets;
    static pc_window_table windows;
    pc_receipt receipt;
    pc_lease lease;
    uint64_t state;
    STATUS(PC_NOT_INITIALISED, pc_token_bucket_take(&bucket, 0, 1, NULL));
    STATUS(PC_NOT_INITIALISED, pc_token_bucket_state(&bucket, &state));
    STATUS(PC_NOT_INITIALISED, pc_fixed_window_take(&window, 0, 1, NULL));
    STATUS(PC_NOT_INITIALISED, pc_sliding_window_take(&sliding, 0, 1, NULL));
    STATUS(PC_NOT_INITIALISED, pc_concurrency_take(&limit, 0, 1, &receipt));
    STATUS(PC_NOT_INITIALISED, pc_lease_pool_take(&pool, 0, 1, PC_NO_DEADLINE, &lease));
    STATUS(PC_NOT_INITIALISED, pc_bucket_table_take(&buckets, "a", 1, 0, 1, NULL));
    STATUS(PC_NOT_INITIALISED, pc_window_table_take(&windows, "a", 1, 0, 1, NULL));
}

static void of_another_type(void) {
    static pc_lease_pool storage;
    STATUS(PC_OK, pc_token_bucket_init((void *)&storage, sizeof storage, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_look((void *)&storage, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_fixed_window_look((void *)&storage, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_sliding_window_look((void *)&storage, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_concurrency_look((void *)&storage, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_lease_pool_look(&storage, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_bucket_table_look((void *)&storage, "a", 1, 0, 1));
    STATUS(PC_NOT_INITIALISED, pc_window_table_look((void *)&storage, "a", 1, 0, 1));
}

static void initialised_twice(void) {
    static pc_token_bucket bucket;
    uint64_t number;
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, 0, 2, NULL));
    STATUS(PC_INITIALISED, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
    STATUS(PC_INITIALISED, pc_token_bucket_restore(&bucket, sizeof bucket, &SETTINGS, 0));
    // As another type.
    STATUS(PC_INITIALISED, pc_concurrency_init((void *)&bucket, sizeof bucket, 1));
    STATUS(PC_OK, pc_token_bucket_available(&bucket, 0, &number));
    CHECK(number == 0);
    memset(&bucket, 0, sizeof bucket);
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, 0, 2, NULL));
    // Memory that was never set to zero.
    memset(&bucket, 0x5a, sizeof bucket);
    STATUS(PC_INITIALISED, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
}

static void receipt_of_another(void) {
    static pc_token_bucket one, other;
    static pc_concurrency limit, second;
    static pc_bucket_table table;
    static pc_line lines[4];
    uint64_t number;
    pc_receipt receipt, none = {0};
    STATUS(PC_OK, pc_token_bucket_init(&one, sizeof one, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_init(&other, sizeof other, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_take(&one, 0, 2, &receipt));
    STATUS(PC_OK, pc_token_bucket_take(&other, 0, 2, NULL));
    STATUS(PC_WRONG_RECEIPT, pc_token_bucket_give_back(&other, 0, 1, &receipt, NULL));
    STATUS(PC_WRONG_RECEIPT, pc_token_bucket_give_back(&other, 0, 1, &none, NULL));
    STATUS(PC_OK, pc_token_bucket_available(&other, 0, &number));
    CHECK(number == 0);

    STATUS(PC_OK, pc_concurrency_init(&limit, sizeof limit, 1));
    STATUS(PC_OK, pc_concurrency_init(&second, sizeof second, 1));
    STATUS(PC_OK, pc_concurrency_take(&limit, 0, 1, &receipt));
    STATUS(PC_WRONG_RECEIPT, pc_concurrency_give_back(&second, 0, 1, &receipt, NULL));
    STATUS(PC_WRONG_RECEIPT, pc_concurrency_give_back(&second, 0, 1, &none, NULL));

    STATUS(PC_OK,
           pc_bucket_table_init(&table, sizeof table, lines, sizeof lines, &SETTINGS, 1, 2));
    STATUS(PC_OK, pc_bucket_table_take(&table, "alice", 5, 0, 1, &receipt));
    STATUS(PC_WRONG_RECEIPT,
           pc_bucket_table_give_back(&table, "bob", 3, 0, 1, &receipt, NULL));
}

static void more_than_taken(void) {
    static pc_concurrency limit;
    uint64_t number;
    pc_receipt receipt;
    STATUS(PC_OK, pc_concurrency_init(&limit, sizeof limit, 5));
    STATUS(PC_OK, pc_concurrency_take(&limit, 0, 2, &receipt));
    STATUS(PC_NOT_TAKEN, pc_concurrency_give_back(&limit, 0, 3, &receipt, NULL));
    STATUS(PC_OK, pc_concurrency_give_back(&limit, 0, 2, &receipt, NULL));
    STATUS(PC_NOT_TAKEN, pc_concurrency_give_back(&limit, 0, 1, &receipt, NULL));
    STATUS(PC_OK, pc_concurrency_available(&limit, 0, &number));
    CHECK(number == 5);

    static pc_token_bucket bucket;
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &SETTINGS));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, 0, 1, &receipt));
    STATUS(PC_NOT_TAKEN, pc_token_bucket_give_back(&bucket, 0, 2, &receipt, NULL));
    STATUS(PC_OK, pc_token_bucket_give_back(&bucket, 0, 1, &receipt, NULL));
    STATUS(PC_NOT_TAKEN, pc_token_bucket_give_back(&bucket, 0, 1, &receipt, NULL));
}

static void stale_lease(void) {
    static pc_lease_pool pool;
    static pc_lease_slot slots[2];
    pc_lease lease, next;
    STATUS(PC_OK, pc_lease_pool_init(&pool, sizeof pool, slots, sizeof slots, 2));
    const pc_lease invented[] = {0, 1, 2, 3, UINT32_MAX, UINT64_MAX, 1ull << 32, 4ull << 32};
    for (size_t at = 0; at < sizeof invented / sizeof *invented; at++) {
        STATUS(PC_STALE, pc_lease_pool_give_back(&pool, invented[at], NULL));
    }
    STATUS(PC_OK, pc_lease_pool_take(&pool, 0, 1, PC_NO_DEADLINE, &lease));
    STATUS(PC_OK, pc_lease_pool_give_back(&pool, lease, NULL));
    STATUS(PC_STALE, pc_lease_pool_give_back(&pool, lease, NULL));
    // The slot has another lease now.
    STATUS(PC_OK, pc_lease_pool_take(&pool, 0, 1, PC_NO_DEADLINE, &next));
    CHECK(pc_lease_slot_of(lease) == pc_lease_slot_of(next));
    STATUS(PC_STALE, pc_lease_pool_give_back(&pool, lease, NULL));
    STATUS(PC_OK, pc_lease_pool_give_back(&pool, next, NULL));
}

static void settings_that_do_not_fit(void) {
    static pc_token_bucket bucket;
#define BUCKET(expected, ...)                                                                      \
    STATUS(expected, pc_token_bucket_init(&bucket, sizeof bucket,                                  \
                                          &(pc_token_bucket_settings){__VA_ARGS__}))
    // A forgotten rate.
    BUCKET(PC_BAD_PERMITS, .period = PC_SECOND, .burst = 20);
    BUCKET(PC_BAD_PERIOD, .permits = 1, .burst = 1);
    BUCKET(PC_BAD_PERIOD, .permits = 1, .burst = 1, .period = UINT64_MAX);
    BUCKET(PC_BAD_BURST, .permits = 1, .period = PC_SECOND);
    BUCKET(PC_BAD_BURST, .permits = 1, .period = PC_SECOND, .burst = UINT64_MAX);
    BUCKET(PC_BAD_TAKEN, .permits = 1, .period = PC_SECOND, .burst = 2, .taken = 3);
    BUCKET(PC_BAD_TICK, .permits = 1, .period = PC_SECOND, .burst = 1, .tick = UINT64_MAX);
    BUCKET(PC_BAD_STALENESS, .permits = 1, .period = PC_SECOND, .burst = 1, .staleness = 1);
    STATUS(PC_NOT_INITIALISED, pc_token_bucket_look(&bucket, 0, 1));

    static pc_fixed_window window;
#define WINDOW(expected, ...)                                                                      \
    STATUS(expected, pc_fixed_window_init(&window, sizeof window,                                  \
                                          &(pc_fixed_window_settings){__VA_ARGS__}))
    WINDOW(PC_BAD_LIMIT, .window = 1);
    WINDOW(PC_BAD_WINDOW, .limit = 1);
    WINDOW(PC_BAD_WINDOW, .limit = 1, .window = UINT64_MAX);
    WINDOW(PC_BAD_STALENESS, .limit = 1, .window = PC_SECOND, .staleness = 1);

    static pc_sliding_window sliding;
#define SLIDING(expected, ...)                                                                     \
    STATUS(expected, pc_sliding_window_init(&sliding, sizeof sliding,                              \
                                            &(pc_sliding_window_settings){__VA_ARGS__}))
    SLIDING(PC_BAD_SEGMENTS, .limit = 1, .window = PC_SECOND);
    SLIDING(PC_BAD_SEGMENTS, .limit = 1, .window = PC_SECOND, .segments = PC_MAX_SEGMENTS + 1);
    SLIDING(PC_BAD_LIMIT, .window = PC_SECOND, .segments = 1);
    SLIDING(PC_BAD_WINDOW, .limit = 1, .segments = 1);

    static pc_concurrency limit;
    STATUS(PC_BAD_LIMIT, pc_concurrency_init(&limit, sizeof limit, 0));
    STATUS(PC_BAD_LIMIT, pc_concurrency_init(&limit, sizeof limit, UINT32_MAX));
    STATUS(PC_NOT_INITIALISED, pc_concurrency_look(&limit, 0, 1));
}

static void key_that_is_too_long(void) {
    static pc_bucket_table table;
    static pc_line lines[1];
    STATUS(PC_OK,
           pc_bucket_table_init(&table, sizeof table, lines, sizeof lines, &SETTINGS, 1, 2));
    STATUS(PC_BAD_KEY, pc_bucket_table_take(&table, "a", SIZE_MAX, 0, 1, NULL));
}

static void unknown_status(void) {
    CHECK(strcmp(pc_status_text(12345), "no status of this library") == 0);
    CHECK(strcmp(pc_status_text(PC_BAD_BURST), "the burst does not fit") == 0);
}

int main(void) {
    null_storage();
    null_argument();
    no_receipt_for_permits_that_must_return();
    misaligned();
    too_small();
    not_initialised();
    of_another_type();
    initialised_twice();
    receipt_of_another();
    more_than_taken();
    stale_lease();
    settings_that_do_not_fit();
    key_that_is_too_long();
    unknown_status();
    return ended();
}
