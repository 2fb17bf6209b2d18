/* A stand-in for libnvidia-ml.so.1, scripted by the file that STUB_NVML names: lines "key value", read at nvmlInit.

   keys: cards N | used BYTES | total BYTES | watts W | no_power 1 | no_energy 1 | no_permission 1 | old_driver 1
         lost_after_s S | pid PID | pid_bytes BYTES | init_error CODE | energy_read_us US
         wobble W (power goes up and down by it) | throttled_frac SHARE (of the time, by the power cap)
   Bytes in use follow the file STUB_NVML_BYTES while it is there (a number), the process id STUB_NVML_PID. The energy counter ticks every 100 ms. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER = 9,
       FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15 };

static double cards = 1, used = 1e9, total = 150e9, watts = 300, no_power, no_energy, no_permission, old_driver,
              lost_after_s, pid, pid_bytes = 5e8, init_error, energy_read_us = 3000, wobble, throttled_frac;
static struct timespec begun;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begun.tv_sec) + (now.tv_nsec - begun.tv_nsec) / 1e9;
}

static void read_script(void) {
    const char *path = getenv("STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char key[64];
    double value;
    struct { const char *name; double *place; } keys[] = {
        {"cards", &cards}, {"used", &used}, {"total", &total}, {"watts", &watts}, {"no_power", &no_power},
        {"no_energy", &no_energy}, {"no_permission", &no_permission}, {"old_driver", &old_driver},
        {"lost_after_s", &lost_after_s}, {"pid", &pid}, {"pid_bytes", &pid_bytes}, {"init_error", &init_error},
        {"energy_read_us", &energy_read_us}, {"wobble", &wobble}, {"throttled_frac", &throttled_frac}};
    if (!file) return;
    while (fscanf(file, "%63s %lf", key, &value) == 2)
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            if (!strcmp(key, keys[i].name)) *keys[i].place = value;
    fclose(file);
}

static double power_now(void) { return watts + wobble * ((long)(seconds() * 10) % 3 - 1); }

static nvmlReturn_t state(void) { return lost_after_s && seconds() > lost_after_s ? GPU_IS_LOST : OK; }

/* One call at a time, as in a driver: a read of the energy counter holds up every other one. */
static volatile int taken;
static void take(void) { while (__sync_lock_test_and_set(&taken, 1)) usleep(50); }
static void give(void) { __sync_lock_release(&taken); }

/* The number in the file that an environment variable names, while it is there; FILE.seen says which was read last. */
static double followed(const char *variable, double value) {
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "r") : NULL;
    double found = value;
    if (file) {
        if (fscanf(file, "%lf", &found) != 1) found = value;
        fclose(file);
        char place[4096];
        snprintf(place, sizeof place, "%s.seen", path);
        if ((file = fopen(place, "w"))) {
            fprintf(file, "%.0f", found);
            fclose(file);
        }
    }
    return found;
}

static unsigned long long used_bytes(void) { return (unsigned long long)followed("STUB_NVML_BYTES", used); }

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!begun.tv_sec) clock_gettime(CLOCK_MONOTONIC, &begun);
    read_script();
    return (nvmlReturn_t)init_error;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == NO_PERMISSION ? "Insufficient Permissions" : code == DRIVER ? "Driver Not Loaded" : "Stub Error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "999.1"); return OK; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)cards; return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= cards) return INVALID;
    *device = (nvmlDevice_t)(size_t)(index + 1);
    return no_permission ? NO_PERMISSION : OK;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(size_t)(atoi(uuid + 9) + 1);
    return OK;
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    *index = (unsigned)(size_t)device - 1;
    return *index < cards ? OK : NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "Stub Card");
    return OK;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    snprintf(text, size, "GPU-stub-%d", (int)(size_t)device - 1);
    return OK;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned long long total, free, used; } memory_v1;
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2 *memory) {
    (void)device;
    if (old_driver) return FUNCTION_NOT_FOUND;
    take();
    give();
    memory->total = (unsigned long long)total;
    memory->reserved = 600000000ULL;
    memory->used = used_bytes();
    memory->free = memory->total - memory->used - memory->reserved;
    return state();
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, memory_v1 *memory) {
    (void)device;
    memory->total = (unsigned long long)total;
    memory->used = used_bytes();
    memory->free = memory->total - memory->used;
    return state();
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = (unsigned)(power_now() * 1e3) + (unsigned)((long)(seconds() / 0.1001) % 2); /* new with each tick */
    return no_power ? NOT_SUPPORTED : state();
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    (void)device;
    if (no_energy || no_power) return NOT_SUPPORTED;
    take();
    usleep((unsigned)energy_read_us);
    give();
    *millijoules = 1000000ULL + (unsigned long long)(watts * 100.1) * (unsigned long long)(seconds() / 0.1001);
    return state();
}
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    nvmlReturn_t status;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_value;
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_value *values) {
    (void)device;
    for (int i = 0; i < count; i++) {
        int power = values[i].field == 185 || values[i].field == 186;
        values[i].status = power && !no_power && !old_driver ? OK : NOT_SUPPORTED;
        values[i].value.u = (unsigned)(power_now() * 1e3);
    }
    return state();
}
typedef struct { unsigned gpu, memory; } utilization;
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilization *rates) {
    (void)device;
    rates->gpu = 75;
    rates->memory = 40;
    return state();
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    (void)device; (void)type;
    *mhz = 1980;
    return state();
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    (void)device; (void)sensor;
    *celsius = 55;
    return state();
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask) {
    (void)device;
    *mask = 0;
    return state();
}
typedef struct { unsigned long long reference, violation; } violation;
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, violation *time) {
    (void)device; (void)policy;
    time->reference = 0;
    time->violation = 5000000 + (unsigned long long)(throttled_frac * seconds() * 1e9);
    return state();
}
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } process;
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, process *found) {
    (void)device;
    unsigned owner = (unsigned)followed("STUB_NVML_PID", pid);
    if (!owner) { *count = 0; return OK; }
    if (*count < 1) { *count = 1; return 7; }
    *count = 1;
    found[0].pid = owner;
    found[0].bytes = (unsigned long long)pid_bytes;
    found[0].gpu = found[0].compute = 0xFFFFFFFF;
    return OK;
}
