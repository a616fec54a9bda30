/* Records when a process keeps its GPU active: loaded by CUDA through CUDA_INJECTION64_PATH, it writes
 * one record for each kernel and copy to $GPU_TRACE.PID while the file $GPU_TRACE.on exists: a
 * record costs the GPU and the launching thread a microsecond or two. Times are CLOCK_MONOTONIC (ns),
 * so that they compare with those of other processes.
 *
 *     gcc -shared -fPIC -O2 -I$CUDA/include gpu_trace.c -L$CUDA/lib -lcupti -o gpu_trace.so
 */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KERNEL, NCCL, TO_GPU, FROM_GPU, ON_GPU };

struct record {
    uint64_t start, end;
    uint32_t kind, stream;
    uint64_t bytes; /* of a copy */
};

static FILE *out;

static uint64_t CUPTIAPI now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void CUPTIAPI provide(uint8_t **buffer, size_t *size, size_t *most) {
    *size = 4 << 20;
    *most = 0;
    *buffer = aligned_alloc(8, *size);
}

static void put(uint64_t start, uint64_t end, uint32_t kind, uint32_t stream, uint64_t bytes) {
    struct record r = {start, end, kind, stream, bytes};
    if (start && end >= start) fwrite(&r, sizeof r, 1, out);
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *next = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
        if (next->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            CUpti_ActivityKernel10 *k = (void *)next;
            put(k->start, k->end, k->name && strstr(k->name, "nccl") ? NCCL : KERNEL, k->streamId, 0);
        } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            CUpti_ActivityMemcpy6 *m = (void *)next;
            uint32_t kind = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? TO_GPU
                            : m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? FROM_GPU
                                                                             : ON_GPU;
            put(m->start, m->end, kind, m->streamId, m->bytes);
        } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            CUpti_ActivityMemset4 *m = (void *)next;
            put(m->start, m->end, ON_GPU, m->streamId, 0);
        }
    }
    fflush(out);
    free(buffer);
}

static const CUpti_ActivityKind KINDS[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMSET, /* whole graphs, switched on later, end the process */
};
static char switch_path[4096];

static void *follow_switch(void *unused) {
    int on = 0;
    for (;; usleep(20000)) {
        int wanted = access(switch_path, F_OK) == 0;
        if (wanted != on)
            for (int n = 0; n < 3; n++) (wanted ? cuptiActivityEnable : cuptiActivityDisable)(KINDS[n]);
        if (wanted || on) cuptiActivityFlushAll(wanted ? 0 : CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        on = wanted;
    }
    return unused;
}

int InitializeInjection(void) {
    const char *stem = getenv("GPU_TRACE");
    pthread_t thread;
    char path[4096];
    if (!stem || snprintf(path, sizeof path, "%s.%d", stem, getpid()) >= (int)sizeof path) return 1;
    out = fopen(path, "wb");
    if (!out) return 1;
    cuptiActivityRegisterTimestampCallback(now);
    cuptiActivityRegisterCallbacks(provide, take);
    snprintf(switch_path, sizeof switch_path, "%s.on", stem);
    return pthread_create(&thread, NULL, follow_switch, NULL) == 0;
}
