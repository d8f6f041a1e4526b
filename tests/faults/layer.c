/* A fault layer between a process and its files, loaded with LD_PRELOAD.

Calls that reach a file below a folder are counted. At one of them, or from it on, the call fails with an error, or the
process is killed: before the call, in the middle of a write, or as if the power failed, which also takes what was
written and not synchronised yet. SQLite is tested in this way: https://sqlite.org/testing.html, section 3. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL = -1, POWER_FAILURE = -2 }; /* instead of an error number */
enum { MOST_UNSYNCED = 256 };

struct unsynced {
    char path[PATH_MAX];
    off_t synced; /* bytes on the disk */
};

static char root[PATH_MAX];
static long target;
static int fault, is_lasting;
static atomic_long *num_calls; /* shared with the parent */
static struct unsynced unsynced[MOST_UNSYNCED];

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    num_calls = mmap(NULL, sizeof *num_calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* Count calls below a folder from now on. At call number `at` comes `error`: an errno, KILL or POWER_FAILURE. */
void layer_arm(const char *folder, long at, int error, int lasting) {
    strncpy(root, folder, PATH_MAX - 1);
    target = at, fault = error, is_lasting = lasting;
    atomic_store(num_calls, 0);
}

void layer_disarm(void) { root[0] = 0; }

long layer_calls(void) { return atomic_load(num_calls); }

static void resolve(int folder, const char *name, char *path) {
    char link[64];
    ssize_t length = 0;
    if (name && name[0] == '/') {
        strncpy(path, name, PATH_MAX - 1);
        return;
    }
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    length = readlink(link, path, PATH_MAX - 2);
    path[length > 0 ? length : 0] = 0;
    if (name && length > 0) snprintf(path + length, PATH_MAX - length, "/%s", name);
}

static int is_ours(const char *path) {
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static void die(void) {
    if (fault == POWER_FAILURE)
        for (int i = 0; i < MOST_UNSYNCED; i++)
            if (unsynced[i].path[0]) truncate(unsynced[i].path, unsynced[i].synced);
    kill(getpid(), SIGKILL);
    pause();
}

/* Return whether this call is to fail; the process may die instead. A write dies half-way where `half` says so. */
static int strikes(const char *path, int *half) {
    if (!root[0] || !is_ours(path)) return 0;
    long call = atomic_fetch_add(num_calls, 1) + 1;
    if (call != target && !(is_lasting && target && call > target)) return 0;
    if (fault > 0) {
        errno = fault;
        return 1;
    }
    if (half && call % 2) {
        *half = 1;
        return 0;
    }
    die();
    return 0;
}

static void note_write(int file, const char *path) {
    struct unsynced *free_entry = NULL;
    struct stat now;
    if (!root[0] || fault != POWER_FAILURE || !is_ours(path)) return;
    for (int i = 0; i < MOST_UNSYNCED; i++) {
        if (!strcmp(unsynced[i].path, path)) return;
        if (!unsynced[i].path[0] && !free_entry) free_entry = &unsynced[i];
    }
    if (!free_entry || fstat(file, &now)) return;
    strcpy(free_entry->path, path);
    free_entry->synced = now.st_size;
}

static void note_sync(const char *path) {
    for (int i = 0; i < MOST_UNSYNCED; i++)
        if (!strcmp(unsynced[i].path, path)) unsynced[i].path[0] = 0;
}

static void note_rename(const char *from, const char *to) {
    size_t length = strlen(from);
    char rest[PATH_MAX];
    for (int i = 0; i < MOST_UNSYNCED; i++) {
        char *path = unsynced[i].path;
        if (strncmp(path, from, length) || (path[length] && path[length] != '/')) continue;
        strcpy(rest, path + length);
        snprintf(path, PATH_MAX, "%s%s", to, rest);
    }
}

#define OPENED(name, ...) \
    char path[PATH_MAX] = ""; \
    mode_t mode = 0; \
    REAL(name); \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    }

int open(const char *name, int flags, ...) {
    OPENED(open)
    resolve(AT_FDCWD, name, path);
    return strikes(path, NULL) ? -1 : real(name, flags, mode);
}

int open64(const char *name, int flags, ...) {
    OPENED(open64)
    resolve(AT_FDCWD, name, path);
    return strikes(path, NULL) ? -1 : real(name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...) {
    OPENED(openat)
    resolve(folder, name, path);
    return strikes(path, NULL) ? -1 : real(folder, name, flags, mode);
}

int openat64(int folder, const char *name, int flags, ...) {
    OPENED(openat64)
    resolve(folder, name, path);
    return strikes(path, NULL) ? -1 : real(folder, name, flags, mode);
}

ssize_t write(int file, const void *content, size_t size) {
    char path[PATH_MAX] = "";
    int half = 0;
    REAL(write);
    if (root[0] && file > 2) {
        resolve(file, NULL, path);
        if (strikes(path, &half)) return -1;
        note_write(file, path);
        if (half) {
            real(file, content, size / 2);
            die();
        }
    }
    return real(file, content, size);
}

ssize_t read(int file, void *content, size_t size) {
    char path[PATH_MAX] = "";
    REAL(read);
    if (root[0] && file > 2) {
        resolve(file, NULL, path);
        if (strikes(path, NULL)) return -1;
    }
    return real(file, content, size);
}

#define ON_FILE(name) \
    int name(int file) { \
        char path[PATH_MAX] = ""; \
        REAL(name); \
        resolve(file, NULL, path); \
        if (strikes(path, NULL)) return -1; \
        note_sync(path); \
        return real(file); \
    }
ON_FILE(fsync)
ON_FILE(fdatasync)

#define ON_PATH(name, ...) \
    char path[PATH_MAX] = ""; \
    REAL(name); \
    resolve(__VA_ARGS__, path); \
    if (strikes(path, NULL)) return -1;

int mkdir(const char *name, mode_t mode) {
    ON_PATH(mkdir, AT_FDCWD, name)
    return real(name, mode);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    ON_PATH(mkdirat, folder, name)
    return real(folder, name, mode);
}

int rmdir(const char *name) {
    ON_PATH(rmdir, AT_FDCWD, name)
    return real(name);
}

int unlink(const char *name) {
    ON_PATH(unlink, AT_FDCWD, name)
    note_sync(path);
    return real(name);
}

int unlinkat(int folder, const char *name, int flags) {
    ON_PATH(unlinkat, folder, name)
    note_sync(path);
    return real(folder, name, flags);
}

int ftruncate64(int file, off64_t size) {
    ON_PATH(ftruncate64, file, NULL)
    return real(file, size);
}

int rename(const char *from, const char *to) {
    char target_path[PATH_MAX] = "";
    ON_PATH(rename, AT_FDCWD, from)
    resolve(AT_FDCWD, to, target_path);
    int done = real(from, to);
    if (!done) note_rename(path, target_path);
    return done;
}

DIR *opendir(const char *name) {
    char path[PATH_MAX] = "";
    REAL(opendir);
    resolve(AT_FDCWD, name, path);
    return strikes(path, NULL) ? NULL : real(name);
}
