// Stands between a process and its monotonic clock: the clock stands still for a while, as it does
// while the machine is suspended. The processor's counter counts on meanwhile.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int (*ask)(clockid_t, struct timespec *);
// In nanoseconds of the real clock.
static long long begin, end;

__attribute__((constructor)) static void start(void) {
    struct timespec now;
    ask = dlsym(RTLD_NEXT, "clock_gettime");
    ask(CLOCK_MONOTONIC, &now);
    begin = now.tv_sec * 1000000000LL + now.tv_nsec + atoll(getenv("SUSPEND_AFTER_MS")) * 1000000;
    end = begin + atoll(getenv("SUSPEND_FOR_MS")) * 1000000;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    if (!ask) {
        start();
    }
    int result = ask(id, time);
    long long now = time->tv_sec * 1000000000LL + time->tv_nsec;
    if (id == CLOCK_MONOTONIC && result == 0 && now > begin) {
        now -= (now < end ? now : end) - begin;
        time->tv_sec = now / 1000000000;
        time->tv_nsec = now % 1000000000;
    }
    return result;
}
