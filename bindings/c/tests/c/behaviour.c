// What the limiters do, called from C.

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

static void a_token_bucket_replenishes(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {.permits = 10, .period = PC_SECOND, .burst = 3};
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));

    uint64_t now = 7 * PC_SECOND, number = 0;
    STATUS(PC_OK, pc_token_bucket_available(&bucket, now, &number));
    CHECK(number == 3);
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now, 3, NULL));
    STATUS(PC_DENIED, pc_token_bucket_look(&bucket, now, 1));
    STATUS(PC_DENIED, pc_token_bucket_take(&bucket, now, 1, NULL));
    STATUS(PC_TOO_MANY, pc_token_bucket_take(&bucket, now, 4, NULL));

    STATUS(PC_OK, pc_token_bucket_retry(&bucket, now, 2, &number));
    CHECK(number == now + 200 * PC_MILLISECOND);
    STATUS(PC_DENIED, pc_token_bucket_look(&bucket, number - 1, 2));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, number, 2, NULL));
    STATUS(PC_NEVER, pc_token_bucket_retry(&bucket, now, 4, &number));
}

static void a_bucket_starts_as_its_settings_say(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {
        .permits = 5,
        .period = PC_SECOND,
        .burst = 10,
        .taken = 10,
        .origin = 60 * PC_SECOND,
        .stepwise = 1,
    };
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));
    uint64_t number = 1;
    STATUS(PC_OK, pc_token_bucket_available(&bucket, 61 * PC_SECOND - 1, &number));
    CHECK(number == 0);
    STATUS(PC_OK, pc_token_bucket_available(&bucket, 61 * PC_SECOND, &number));
    CHECK(number == 5);
}

// Before a deep sleep, and after it, when the memory is zero again.
static void a_bucket_continues_from_its_saved_state(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {.permits = 10, .period = PC_SECOND, .burst = 3};
    uint64_t now = 60 * PC_SECOND, state = 0, number = 0;
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now, 3, NULL));
    STATUS(PC_OK, pc_token_bucket_state(&bucket, &state));
    memset(&bucket, 0, sizeof bucket);

    STATUS(PC_OK, pc_token_bucket_restore(&bucket, sizeof bucket, &settings, state));
    STATUS(PC_DENIED, pc_token_bucket_take(&bucket, now + 50 * PC_MILLISECOND, 1, NULL));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now + 100 * PC_MILLISECOND, 1, NULL));

    // A damaged state is no more than a full bucket.
    for (unsigned bit = 0; bit < 64; bit++) {
        memset(&bucket, 0, sizeof bucket);
        uint64_t damaged = state ^ UINT64_C(1) << bit;
        STATUS(PC_OK, pc_token_bucket_restore(&bucket, sizeof bucket, &settings, damaged));
        STATUS(PC_OK, pc_token_bucket_available(&bucket, now, &number));
        CHECK(number <= 3);
    }
}

static void a_receipt_refunds_what_it_covers(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {.permits = 1, .period = PC_SECOND, .burst = 5};
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));
    uint64_t now = 9 * PC_SECOND, number = 0;
    pc_receipt receipt;
    uint32_t returned = 0;
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now, 3, &receipt));
    STATUS(PC_OK, pc_token_bucket_give_back(&bucket, now, 2, &receipt, &returned));
    CHECK(returned == 2);
    STATUS(PC_OK, pc_token_bucket_available(&bucket, now, &number));
    CHECK(number == 4);
    STATUS(PC_OK, pc_token_bucket_give_back(&bucket, now, 1, &receipt, NULL));
    STATUS(PC_OK, pc_token_bucket_available(&bucket, now, &number));
    CHECK(number == 5);
    // The limit is kept: what has come back by time does not come back a second time.
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now, 5, &receipt));
    STATUS(PC_OK, pc_token_bucket_give_back(&bucket, now + 10 * PC_SECOND, 5, &receipt, NULL));
    STATUS(PC_OK, pc_token_bucket_available(&bucket, now + 10 * PC_SECOND, &number));
    CHECK(number == 5);
}

static void a_fixed_window_starts_again(void) {
    static pc_fixed_window window;
    pc_fixed_window_settings settings = {.limit = 2, .window = PC_MINUTE};
    STATUS(PC_OK, pc_fixed_window_init(&window, sizeof window, &settings));
    uint64_t number;
    pc_receipt receipt;
    uint32_t returned;
    STATUS(PC_OK, pc_fixed_window_take(&window, 10 * PC_SECOND, 2, &receipt));
    STATUS(PC_DENIED, pc_fixed_window_take(&window, 59 * PC_SECOND, 1, NULL));
    STATUS(PC_OK, pc_fixed_window_retry(&window, 59 * PC_SECOND, 1, &number));
    CHECK(number == PC_MINUTE);
    STATUS(PC_OK, pc_fixed_window_give_back(&window, 59 * PC_SECOND, 1, &receipt, &returned));
    CHECK(returned == 1);
    STATUS(PC_OK, pc_fixed_window_take(&window, 59 * PC_SECOND, 1, NULL));
    // A refund into an ended window is worth nothing.
    STATUS(PC_OK, pc_fixed_window_take(&window, PC_MINUTE, 1, NULL));
    STATUS(PC_OK, pc_fixed_window_give_back(&window, PC_MINUTE, 1, &receipt, &returned));
    CHECK(returned == 0);
    STATUS(PC_OK, pc_fixed_window_available(&window, PC_MINUTE, &number));
    CHECK(number == 1);
    STATUS(PC_OK, pc_fixed_window_look(&window, PC_MINUTE, 1));

    static pc_fixed_window started;
    settings.from_first_request = 1;
    STATUS(PC_OK, pc_fixed_window_init(&started, sizeof started, &settings));
    STATUS(PC_OK, pc_fixed_window_take(&started, 30 * PC_SECOND, 2, NULL));
    STATUS(PC_DENIED, pc_fixed_window_look(&started, 89 * PC_SECOND, 1));
    STATUS(PC_OK, pc_fixed_window_look(&started, 91 * PC_SECOND, 1));
}

static void a_sliding_window_slides(void) {
    static pc_sliding_window window;
    pc_sliding_window_settings settings = {.limit = 10, .window = 3 * PC_SECOND, .segments = 3};
    STATUS(PC_OK, pc_sliding_window_init(&window, sizeof window, &settings));
    uint64_t number;
    pc_receipt receipt;
    STATUS(PC_OK, pc_sliding_window_take(&window, 0, 3, NULL));
    STATUS(PC_OK, pc_sliding_window_take(&window, PC_SECOND, 4, NULL));
    STATUS(PC_OK, pc_sliding_window_take(&window, 2 * PC_SECOND, 3, &receipt));
    STATUS(PC_DENIED, pc_sliding_window_take(&window, 2 * PC_SECOND, 1, NULL));
    STATUS(PC_OK, pc_sliding_window_retry(&window, 2 * PC_SECOND, 1, &number));
    CHECK(number == 3 * PC_SECOND);
    STATUS(PC_OK, pc_sliding_window_give_back(&window, 2 * PC_SECOND, 1, &receipt, NULL));
    STATUS(PC_OK, pc_sliding_window_available(&window, 2 * PC_SECOND, &number));
    CHECK(number == 1);
    STATUS(PC_OK, pc_sliding_window_available(&window, 3 * PC_SECOND, &number));
    CHECK(number == 4);
    STATUS(PC_OK, pc_sliding_window_look(&window, 3 * PC_SECOND, 4));
}

static void a_concurrency_limit_gets_its_permits_back(void) {
    static pc_concurrency limit;
    STATUS(PC_OK, pc_concurrency_init(&limit, sizeof limit, 3));
    uint64_t number;
    uint32_t returned;
    pc_receipt one, other;
    STATUS(PC_OK, pc_concurrency_take(&limit, 0, 2, &one));
    STATUS(PC_DENIED, pc_concurrency_take(&limit, 0, 2, &other));
    STATUS(PC_ON_RELEASE, pc_concurrency_retry(&limit, 0, 2, &number));
    STATUS(PC_OK, pc_concurrency_give_back(&limit, 0, 1, &one, &returned));
    CHECK(returned == 1);
    STATUS(PC_OK, pc_concurrency_take(&limit, 0, 2, &other));
    STATUS(PC_OK, pc_concurrency_give_back(&limit, 0, 1, &one, &returned));
    STATUS(PC_OK, pc_concurrency_give_back(&limit, 0, 2, &other, &returned));
    STATUS(PC_OK, pc_concurrency_available(&limit, 0, &number));
    CHECK(number == 3);
    STATUS(PC_TOO_MANY, pc_concurrency_look(&limit, 0, 4));
}

static void leases_have_numbers_and_deadlines(void) {
    static pc_lease_pool pool;
    static pc_lease_slot slots[2];
    STATUS(PC_OK, pc_lease_pool_init(&pool, sizeof pool, slots, sizeof slots, 4));
    uint64_t number;
    uint32_t returned;
    pc_lease one, other, none;
    STATUS(PC_OK, pc_lease_pool_take(&pool, 0, 2, PC_NO_DEADLINE, &one));
    STATUS(PC_DENIED, pc_lease_pool_take(&pool, 0, 3, PC_NO_DEADLINE, &none));
    STATUS(PC_OK, pc_lease_pool_take(&pool, 0, 1, 5 * PC_SECOND, &other));
    CHECK(pc_lease_slot_of(one) < 2 && pc_lease_slot_of(other) < 2);
    CHECK(pc_lease_slot_of(one) != pc_lease_slot_of(other));
    STATUS(PC_POOL_FULL, pc_lease_pool_take(&pool, 0, 1, PC_NO_DEADLINE, &none));
    STATUS(PC_OK, pc_lease_pool_available(&pool, 0, &number));
    CHECK(number == 1);
    STATUS(PC_OK, pc_lease_pool_look(&pool, 0, 1));
    STATUS(PC_ON_RELEASE, pc_lease_pool_retry(&pool, 0, 2, &number));

    STATUS(PC_OK, pc_lease_pool_give_back(&pool, one, &returned));
    CHECK(returned == 2);
    STATUS(PC_STALE, pc_lease_pool_give_back(&pool, one, &returned));
    STATUS(PC_OK, pc_lease_pool_sweep(&pool, 5 * PC_SECOND - 1, &number));
    CHECK(number == 0);
    STATUS(PC_OK, pc_lease_pool_sweep(&pool, 5 * PC_SECOND, &number));
    CHECK(number == 1);
    STATUS(PC_STALE, pc_lease_pool_give_back(&pool, other, NULL));
    STATUS(PC_OK, pc_lease_pool_sweep(&pool, 5 * PC_SECOND, NULL));
}

static void each_key_of_a_table_has_its_own_limit(void) {
    static pc_bucket_table table;
    static pc_line lines[16];
    pc_token_bucket_settings settings = {.permits = 10, .period = PC_SECOND, .burst = 2};
    STATUS(PC_OK, pc_bucket_table_init(&table, sizeof table, lines, sizeof lines, &settings, 7, 8));
    uint64_t now = 9 * PC_SECOND, number;
    pc_receipt receipt;
    STATUS(PC_OK, pc_bucket_table_take(&table, "alice", 5, now, 2, &receipt));
    STATUS(PC_DENIED, pc_bucket_table_take(&table, "alice", 5, now, 1, NULL));
    STATUS(PC_OK, pc_bucket_table_take(&table, "bob", 3, now, 1, NULL));
    STATUS(PC_OK, pc_bucket_table_retry(&table, "alice", 5, now, 1, &number));
    CHECK(number == now + 100 * PC_MILLISECOND);
    STATUS(PC_OK, pc_bucket_table_give_back(&table, "alice", 5, now, 1, &receipt, NULL));
    STATUS(PC_OK, pc_bucket_table_available(&table, "alice", 5, now, &number));
    CHECK(number == 1);
    STATUS(PC_OK, pc_bucket_table_look(&table, "", 0, now, 2));
    pc_detail detail;
    STATUS(PC_OK, pc_bucket_table_explain(&table, "bob", 3, now, 1, &detail));
    CHECK(detail.available == 1 && detail.capacity == 2 && detail.decision == PC_OK);
}

static void a_full_table_denies_new_keys(void) {
    static pc_window_table table;
    static pc_line lines[1];
    pc_fixed_window_settings settings = {.limit = 1, .window = PC_MINUTE};
    STATUS(PC_OK, pc_window_table_init(&table, sizeof table, lines, sizeof lines, &settings, 1, 2));
    uint32_t crowded = 0, granted = 0;
    for (uint32_t key = 0; key < 30; key++) {
        int status = pc_window_table_take(&table, &key, sizeof key, 0, 1, NULL);
        granted += status == PC_OK;
        crowded += status == PC_CROWDED;
    }
    // With tags of few bits, two of the keys may share a limit.
    CHECK(granted == (PC_WORD_BITS == 64 ? 7 : 14) && crowded > 0 && granted + crowded >= 28);
}

static void a_decision_is_explained(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {.permits = 1, .period = PC_SECOND, .burst = 5};
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));
    uint64_t now = 9 * PC_SECOND;
    pc_detail detail;
    STATUS(PC_OK, pc_token_bucket_take(&bucket, now, 3, NULL));
    STATUS(PC_OK, pc_token_bucket_explain(&bucket, now, 4, &detail));
    CHECK(detail.decision == PC_DENIED && detail.available == 2 && detail.capacity == 5);
    CHECK(detail.retry == PC_OK && detail.retry_at == now + 2 * PC_SECOND);
    CHECK(detail.full == PC_OK && detail.full_at == now + 3 * PC_SECOND);
    CHECK(detail.time_to_fill == 5 * PC_SECOND);

    static pc_concurrency limit;
    STATUS(PC_OK, pc_concurrency_init(&limit, sizeof limit, 1));
    pc_receipt receipt;
    STATUS(PC_OK, pc_concurrency_take(&limit, now, 1, &receipt));
    STATUS(PC_OK, pc_concurrency_explain(&limit, now, 1, &detail));
    CHECK(detail.retry == PC_ON_RELEASE && detail.full == PC_ON_RELEASE);
    CHECK(detail.time_to_fill == 0);
}

static void a_request_for_none_is_a_probe(void) {
    static pc_token_bucket bucket;
    pc_token_bucket_settings settings = {.permits = 1, .period = PC_SECOND, .burst = 1};
    STATUS(PC_OK, pc_token_bucket_init(&bucket, sizeof bucket, &settings));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, PC_SECOND, 0, NULL));
    STATUS(PC_OK, pc_token_bucket_take(&bucket, PC_SECOND, 1, NULL));
    STATUS(PC_DENIED, pc_token_bucket_take(&bucket, PC_SECOND, 0, NULL));
}

static void ticks_are_converted(void) {
    CHECK(pc_nanos(0, 32768) == 0);
    CHECK(pc_nanos(32768, 32768) == PC_SECOND);
    CHECK(pc_nanos(1, 32768) == 30517);
    CHECK(pc_nanos(UINT64_MAX, 1) == UINT64_MAX);
    CHECK(pc_nanos(UINT64_MAX, UINT32_MAX) == 4294967297000000000);
    CHECK(pc_nanos(5, 0) == 0);
    uint64_t before = 0;
    for (uint64_t ticks = 0; ticks < 100000; ticks++) {
        uint64_t nanos = pc_nanos(ticks, 12345);
        CHECK(nanos >= before && nanos == ticks * PC_SECOND / 12345);
        before = nanos;
    }
}

static pc_token_bucket shared;

static void *take_all(void *granted) {
    for (unsigned call = 0; call < 20000; call++) {
        *(unsigned *)granted += pc_token_bucket_take(&shared, PC_SECOND, 1, NULL) == PC_OK;
    }
    return NULL;
}

static void threads_share_a_limit(void) {
    enum { THREADS = 4, BURST = 30000 };
    pc_token_bucket_settings settings = {.permits = 1, .period = PC_DAY, .burst = BURST};
    STATUS(PC_OK, pc_token_bucket_init(&shared, sizeof shared, &settings));
    pthread_t threads[THREADS];
    unsigned granted[THREADS] = {0}, sum = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        CHECK(pthread_create(&threads[thread], NULL, take_all, &granted[thread]) == 0);
    }
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
        sum += granted[thread];
    }
    CHECK(sum == BURST);
}

static void memory_of_the_heap_can_be_used(void) {
    pc_lease_pool *pool = aligned_alloc(128, sizeof *pool);
    pc_lease_slot *slots = calloc(100, sizeof *slots);
    CHECK(pool && slots);
    memset(pool, 0, sizeof *pool);
    STATUS(PC_OK, pc_lease_pool_init(pool, sizeof *pool, slots, 100 * sizeof *slots, 100));
    pc_lease lease;
    for (int taken = 0; taken < 100; taken++) {
        STATUS(PC_OK, pc_lease_pool_take(pool, 0, 1, PC_NO_DEADLINE, &lease));
    }
    STATUS(PC_DENIED, pc_lease_pool_look(pool, 0, 1));
    free(pool);
    free(slots);
}

int main(void) {
    a_token_bucket_replenishes();
    a_bucket_starts_as_its_settings_say();
    a_bucket_continues_from_its_saved_state();
    a_receipt_refunds_what_it_covers();
    a_fixed_window_starts_again();
    a_sliding_window_slides();
    a_concurrency_limit_gets_its_permits_back();
    leases_have_numbers_and_deadlines();
    each_key_of_a_table_has_its_own_limit();
    a_full_table_denies_new_keys();
    a_decision_is_explained();
    a_request_for_none_is_a_probe();
    ticks_are_converted();
    threads_share_a_limit();
    memory_of_the_heap_can_be_used();
    return ended();
}
