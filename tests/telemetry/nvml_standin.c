/* A stand-in for NVIDIA's libnvidia-ml.so.1, compiled by test_nvml.py.

   It answers from the text file named by NVML_STANDIN, read anew at every call, so that a test can
   change the machine while it runs. A line is "key=value"; a value "!15" makes the call fail with
   NVML's error 15. A key that is not there is NOT_SUPPORTED. Per device the key starts with its
   index; the MIG instance is device 8. "0.lost=1" makes every call on device 0 fail as lost.

   Compiled with -DOLD_DRIVER it has none of the calls that drivers got later. Layouts and error
   numbers are those of the public nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef unsigned long long u64;
typedef struct device *nvmlDevice_t;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { DEVICES = 9, MIG_INSTANCE = 8, LINE = 512 };

struct device { int index; };
static struct device devices[DEVICES] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}};

struct memory_v1 { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; };

/* Copies the value of a key; fails as the value says, or with `missing` if there is no such key. */
static nvmlReturn_t text_of(const char *key, char value[LINE], nvmlReturn_t missing) {
    char line[LINE];
    size_t length = strlen(key);
    nvmlReturn_t result = missing;
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=') continue;
        strcpy(value, line + length + 1);
        result = value[0] == '!' ? atoi(value + 1) : SUCCESS;
    }
    fclose(file);
    return result;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *name, char value[LINE]) {
    char key[LINE], lost[LINE];
    snprintf(key, sizeof key, "%d.lost", device->index);
    if (text_of(key, lost, NOT_SUPPORTED) == SUCCESS && lost[0] == '1') return GPU_IS_LOST;
    snprintf(key, sizeof key, "%d.%s", device->index, name);
    return text_of(key, value, NOT_SUPPORTED);
}

static nvmlReturn_t device_number(nvmlDevice_t device, const char *name, u64 *number) {
    char value[LINE];
    nvmlReturn_t result = device_text(device, name, value);
    if (result == SUCCESS) *number = strtoull(value, NULL, 0);
    return result;
}

static nvmlReturn_t device_unsigned(nvmlDevice_t device, const char *name, unsigned *number) {
    u64 wide = 0;
    nvmlReturn_t result = device_number(device, name, &wide);
    if (result == SUCCESS) *number = (unsigned)wide;
    return result;
}

static nvmlReturn_t device_string(nvmlDevice_t device, const char *name, char *out, unsigned size) {
    char value[LINE];
    nvmlReturn_t result = device_text(device, name, value);
    if (result == SUCCESS) snprintf(out, size, "%s", value);
    return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    char value[LINE];
    (void)flags;
    return text_of("init", value, SUCCESS);
}

nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t error) {
    static char text[64];
    snprintf(text, sizeof text, "stand-in error %d", error);
    return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[LINE];
    nvmlReturn_t result = text_of("driver", value, NOT_SUPPORTED);
    if (result == SUCCESS) snprintf(out, size, "%s", value);
    return result;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    char value[LINE];
    nvmlReturn_t result = text_of("count", value, NOT_SUPPORTED);
    if (result == SUCCESS) *count = (unsigned)atoi(value);
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    char key[LINE], value[LINE];
    snprintf(key, sizeof key, "%u.lost", index);
    if (text_of(key, value, NOT_SUPPORTED) == SUCCESS && value[0] == '1') return GPU_IS_LOST;
    if (index >= DEVICES) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char value[LINE];
    for (int at = 0; at < DEVICES; at++)
        if (device_text(&devices[at], "uuid", value) == SUCCESS && !strcmp(value, uuid)) {
            *device = &devices[at];
            return SUCCESS;
        }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                          nvmlDevice_t *parent) {
    unsigned index = 0;
    nvmlReturn_t result = device_unsigned(instance, "parent", &index);
    if (result == SUCCESS) *parent = &devices[index];
    return result;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    *index = (unsigned)device->index;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned size) {
    return device_string(device, "name", out, size);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned size) {
    return device_string(device, "uuid", out, size);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    *pending = 0;
    return device_unsigned(device, "mig", current);
}

/* As drivers since 510 do, v1 counts the reserve as used and v2 does not. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_v1 *memory) {
    u64 used = 0, reserved = 0;
    nvmlReturn_t result = device_number(device, "total", &memory->total);
    if (result == SUCCESS) result = device_number(device, "used", &used);
    if (result != SUCCESS) return result;
    device_number(device, "reserved", &reserved);
    memory->used = used + reserved;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
    return device_unsigned(device, "power_limit", milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    return device_unsigned(device, "power", milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, u64 *millijoules) {
    return device_number(device, "energy", millijoules);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *rates) {
    rates->memory = 0;
    return device_unsigned(device, "utilization", &rates->gpu);
}

/* Processes are written "pid:bytes,pid:bytes"; "-" for bytes that the driver does not tell. */
static nvmlReturn_t processes(nvmlDevice_t device, const char *name, unsigned *room,
                              struct process *out) {
    char value[LINE];
    unsigned found = 0;
    nvmlReturn_t result = device_text(device, name, value);
    if (result != SUCCESS) return result;
    for (char *entry = strtok(value, ","); entry; entry = strtok(NULL, ",")) {
        char *bytes = strchr(entry, ':') + 1;
        if (out && found < *room) {
            memset(&out[found], 0xFF, sizeof *out);
            out[found].pid = (unsigned)strtoul(entry, NULL, 10);
            if (*bytes != '-') out[found].bytes = strtoull(bytes, NULL, 10);
        }
        found++;
    }
    result = found > *room ? INSUFFICIENT_SIZE : SUCCESS;
    *room = found;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *room,
                                                     struct process *out) {
    return processes(device, "compute", room, out);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *room,
                                                      struct process *out) {
    return processes(device, "graphics", room, out);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, u64 *reasons) {
    return device_number(device, "reasons", reasons);
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory) {
    u64 used = 0;
    if (memory->version != (sizeof(struct memory_v2) | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = device_number(device, "total", &memory->total);
    if (result == SUCCESS) result = device_number(device, "used", &used);
    if (result == SUCCESS) result = device_number(device, "reserved", &memory->reserved);
    if (result != SUCCESS) return result;
    memory->used = used;
    memory->free = memory->total - used - memory->reserved;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *room,
                                                     struct process *out) {
    return processes(device, "compute", room, out);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *room,
                                                      struct process *out) {
    return processes(device, "graphics", room, out);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, u64 *reasons) {
    return device_number(device, "reasons", reasons);
}
#endif
