/* Shifts the wall clock of the process into which this library is preloaded (LD_PRELOAD), like a
 * wrong clock or an NTP step. The file CLOCK_SHIFT_FILE contains one double, the seconds to add; it
 * is mapped, so later writes take effect immediately. Monotonic clocks do not change. The variable
 * may be set later, in a fork. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *shift;

static void begin(void) {
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    shift = found == MAP_FAILED ? NULL : found;
    close(file);
}

static void move(time_t *seconds, long *parts, long in_a_second) {
    if (shift == NULL)
        begin();
    double by = shift == NULL ? 0 : *shift, whole = floor(by);
    *seconds += (time_t)whole;
    *parts += (long)((by - whole) * in_a_second);
    if (*parts >= in_a_second) {
        *parts -= in_a_second;
        *seconds += 1;
    }
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, at);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        move(&at->tv_sec, &at->tv_nsec, 1000000000L);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
