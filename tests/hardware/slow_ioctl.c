/* Stands before the C library (LD_PRELOAD), and lets single calls of one GPU's driver take long.
 *
 * NVML asks a GPU by ioctl, on the GPU's own device file or on /dev/nvidiactl with the handle of an
 * object. Objects are followed from the device that they belong to: what is allocated below a device
 * is that device's. The GPU meant is the SLOW_GPU-th (from 0) whose device was allocated or opened.
 * Each time the file SLOW_FILE is there, the next call of this GPU removes it, and takes SLOW_SECONDS
 * longer; while the file SLOW_EACH is there, each call takes as long. A line of SLOW_LOG then says how many calls of that GPU and of others came back meanwhile.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 'F'
#define CONTROL 0x2a
#define ALLOC 0x2b
#define DEVICE_CLASS 0x80
#define MOST 65536
#define FILES 4096
#define NONE (-1)

struct control { uint32_t client, object; };
struct alloc { uint32_t root, parent, object, class_; uint64_t parameters; };

static struct { uint32_t client, object; int gpu; } objects[MOST];
static int known, gpus, minors, slow, gpu_ids[64], minor_ids[64], file_gpu[FILES], is_control[FILES];
static volatile int delayed, came_back, came_back_own;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int (*real_ioctl)(int, unsigned long, void *);
static int (*real_open)(const char *, int, ...);
static int (*real_open64)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_openat64)(int, const char *, int, ...);

__attribute__((constructor)) static void begin(void) {
    const char *which = getenv("SLOW_GPU");
    slow = which ? atoi(which) : 1;
    real_ioctl = dlsym(RTLD_NEXT, "ioctl");
    real_open = dlsym(RTLD_NEXT, "open");
    real_open64 = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat");
    real_openat64 = dlsym(RTLD_NEXT, "openat64");
    for (int i = 0; i < FILES; i++) file_gpu[i] = NONE;
}

static int place(int *ids, int *count, int id) {
    for (int i = 0; i < *count; i++)
        if (ids[i] == id) return i;
    if (*count == 64) return NONE;
    ids[*count] = id;
    return (*count)++;
}

static int opened(int file, const char *path) {
    if (file < 0 || file >= FILES) return file;
    int number, end = 0;
    pthread_mutex_lock(&lock);
    is_control[file] = !strcmp(path, "/dev/nvidiactl");
    file_gpu[file] = NONE;
    if (sscanf(path, "/dev/nvidia%d%n", &number, &end) == 1 && !path[end])
        file_gpu[file] = place(minor_ids, &minors, number);
    pthread_mutex_unlock(&lock);
    return file;
}

#define MODE \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);

int open(const char *path, int flags, ...) { MODE return opened(real_open(path, flags, mode), path); }
int open64(const char *path, int flags, ...) { MODE return opened(real_open64(path, flags, mode), path); }
int openat(int at, const char *path, int flags, ...) { MODE return opened(real_openat(at, path, flags, mode), path); }
int openat64(int at, const char *path, int flags, ...) { MODE return opened(real_openat64(at, path, flags, mode), path); }

static int owner(uint32_t client, uint32_t object) {
    int gpu = NONE;
    pthread_mutex_lock(&lock);
    for (int i = known - 1; i >= 0 && gpu == NONE; i--)
        if (objects[i].client == client && objects[i].object == object) gpu = objects[i].gpu;
    pthread_mutex_unlock(&lock);
    return gpu;
}

static void follow(const struct alloc *made) {
    int gpu = owner(made->root, made->parent);
    if (made->class_ == DEVICE_CLASS) {
        uint32_t id = made->parameters ? *(uint32_t *)(uintptr_t)made->parameters : 0;
        gpu = place(gpu_ids, &gpus, (int)id);
    }
    if (gpu == NONE) return;
    pthread_mutex_lock(&lock);
    int at = known < MOST ? known++ : MOST - 1;
    objects[at].client = made->root;
    objects[at].object = made->object;
    objects[at].gpu = gpu;
    pthread_mutex_unlock(&lock);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void delay(unsigned call) {
    const char *seconds = getenv("SLOW_SECONDS"), *path = getenv("SLOW_LOG");
    struct timespec left = {seconds ? atoi(seconds) : 45, 0};
    double began = now();
    came_back = came_back_own = 0;
    delayed = 1;
    while (nanosleep(&left, &left)) {}
    delayed = 0;
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return;
    fprintf(log, "%.3f %.3f %u %d %d\n", began, now(), call, came_back, came_back_own);
    fclose(log);
}

int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    unsigned call = _IOC_NR(request);
    int ours = file >= 0 && file < FILES && _IOC_TYPE(request) == MAGIC;
    int gpu = ours ? file_gpu[file] : NONE;
    if (ours && is_control[file] && call == CONTROL && argument) {
        const struct control *asked = argument;
        gpu = owner(asked->client, asked->object);
    }
    const char *token = getenv("SLOW_FILE"), *each = getenv("SLOW_EACH");
    if (gpu == slow && ((token && !unlink(token)) || (each && !access(each, F_OK)))) delay(call);
    int result = real_ioctl(file, request, argument);
    if (ours && is_control[file] && call == ALLOC && argument) follow(argument);
    if (delayed && gpu != NONE) __sync_fetch_and_add(gpu == slow ? &came_back_own : &came_back, 1);
    return result;
}
