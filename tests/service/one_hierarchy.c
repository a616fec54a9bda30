/* Shows the line of version 2 alone of /proc/PID/cgroup, as a kernel does that has no hierarchy of
   version 1: Slurm's plugin for version 2 refuses to start where it reads of others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_list(const char *path) {
    size_t length = strlen(path);
    return length > 13 && !strncmp(path, "/proc/", 6) && !strcmp(path + length - 7, "/cgroup");
}

static int without_version_1(const char *path, int file) {
    char text[8192];
    if (file < 0 || !is_list(path)) return file;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    int kept = memfd_create("cgroup", 0);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, "0::", 3)) dprintf(kept, "%s\n", line);
    lseek(kept, 0, SEEK_SET);
    return kept;
}

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);   \
        va_list more;                                                    \
        va_start(more, flags);                                           \
        int mode = va_arg(more, int);                                    \
        va_end(more);                                                    \
        return without_version_1(path, real(path, flags, mode));         \
    }
OPEN(open)
OPEN(open64)

FILE *fopen(const char *path, const char *mode) {
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    if (!is_list(path)) return real(path, mode);
    int file = open(path, O_RDONLY);
    return file < 0 ? NULL : fdopen(file, "r");
}
