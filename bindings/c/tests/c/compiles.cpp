// The header is C++ as well: it compiles, and links with the library.

#include "portcullis.h"

static pc_token_bucket bucket;

int main() {
    pc_token_bucket_settings settings = {};
    settings.permits = 1;
    settings.period = PC_SECOND;
    settings.burst = 1;
    if (pc_token_bucket_init(&bucket, sizeof bucket, &settings) != PC_OK) {
        return 1;
    }
    return pc_token_bucket_take(&bucket, PC_SECOND, 1, nullptr);
}
