/* A disk that fails on request, and that knows what it would still hold after a power loss. Put under a program with
 * LD_PRELOAD; support/disk.rs is its other side.
 *
 * In the directory $DISK:
 *   live/    what the program works on; plain files
 *   synced/  NAME: what an fsync has put on the disk; NAME.dirty: one byte for each page that was written since;
 *            NAME.entry: the directory was synced while it held the name
 *   faults   "sync ENDING ERRNO": the next fsync of a file whose name ends so fails, once, and what it should have
 *            written is lost, as Linux has it; with -1 for ERRNO the program dies before it, or after it with "synced";
 *            "write ENDING ERRNO": every write fails for as long as this file exists
 *   log      one line for each fsync
 *
 * The state is in files, so that the next process on the same machine knows what its predecessor left unsynced.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1 << 18, FILES = 16, DEATH = -1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[NAME_MAX + 1];
    unsigned char *dirty;
} files[FILES];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void die(const char *what) {
    perror(what);
    abort();
}

static void place(char *path, const char *part, const char *name, const char *ending) {
    snprintf(path, PATH_MAX, "%s/%s%s%s", getenv("DISK"), part, name, ending);
}

/* The name of an open file of live/; empty for the directory itself, NULL for everything else. */
static const char *name_of(int fd, char *path) {
    char link[64], live[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0 || !getenv("DISK")) return NULL;
    path[length] = 0;
    place(live, "live", "", "");
    size_t prefix = strlen(live);
    if (strncmp(path, live, prefix)) return NULL;
    if (!path[prefix]) return path + prefix;
    int is_plain = path[prefix] == '/' && !strchr(path + prefix + 1, '/') && !strstr(path, " (deleted)");
    return is_plain ? path + prefix + 1 : NULL;
}

static unsigned char *dirty_pages(const char *name) {
    int i = 0;
    while (files[i].dirty && strcmp(files[i].name, name)) i++;
    if (files[i].dirty) return files[i].dirty;
    if (i == FILES - 1) die("too many files");
    char path[PATH_MAX];
    place(path, "synced/", name, ".dirty");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || REAL(ftruncate)(fd, PAGES)) die(path);
    files[i].dirty = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (files[i].dirty == MAP_FAILED) die(path);
    close(fd);
    return strcpy(files[i].name, name), files[i].dirty;
}

static void soil(const char *name, off_t from, off_t to) {
    unsigned char *dirty = dirty_pages(name);
    if (to > (off_t)PAGES * PAGE) die("the file is too long");
    if (to > from) memset(dirty + from / PAGE, 1, (to - 1) / PAGE - from / PAGE + 1);
}

/* The error that `call` on `name` has to fail with, or 0. */
static int fault(const char *call, const char *name) {
    char path[PATH_MAX], asked[16], ending[64];
    int error = 0;
    place(path, "faults", "", "");
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int whole = fscanf(file, "%15s %63s %d", asked, ending, &error) == 3;
    fclose(file);
    size_t length = strlen(name), tail = strlen(ending);
    int hit = whole && !strcmp(asked, call) && length >= tail && !strcmp(name + length - tail, ending);
    return hit ? error : 0;
}

static void note(const char *name, int error) {
    char path[PATH_MAX];
    place(path, "log", "", "");
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) die(path);
    dprintf(fd, "%s %s\n", *name ? name : "DIRECTORY", error ? "failed" : "ok");
    close(fd);
}

static void put_pages(int fd, const char *name) {
    char path[PATH_MAX], page[PAGE];
    place(path, "synced/", name, "");
    int disk = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    off_t size = lseek(disk, 0, SEEK_END), live = 0;
    unsigned char *dirty = dirty_pages(name);
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int source = open(self, O_RDONLY | O_CLOEXEC);
    if (disk < 0 || source < 0) die(path);
    live = lseek(source, 0, SEEK_END);
    for (off_t number = 0; number * PAGE < live; number++) {
        if (!dirty[number]) continue;
        ssize_t length = pread(source, page, PAGE, number * PAGE);
        if (length < 0 || REAL(pwrite)(disk, page, length, number * PAGE) != length) die(path);
        dirty[number] = 0;
    }
    if (size != live && REAL(ftruncate)(disk, live)) die(path);
    close(source);
    close(disk);
}

/* The names that are there, and none that are not. */
static void put_entries(void) {
    char path[PATH_MAX], name[NAME_MAX + 1];
    place(path, "live", "", "");
    DIR *live = opendir(path);
    for (struct dirent *entry; live && (entry = readdir(live));) {
        if (entry->d_name[0] == '.') continue;
        place(path, "synced/", entry->d_name, ".entry");
        close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    if (live) closedir(live);
    place(path, "synced", "", "");
    DIR *synced = opendir(path);
    for (struct dirent *entry; synced && (entry = readdir(synced));) {
        size_t length = strlen(entry->d_name), mark = strlen(".entry");
        if (length < mark || strcmp(entry->d_name + length - mark, ".entry")) continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - mark), entry->d_name);
        place(path, "live/", name, "");
        if (!access(path, F_OK)) continue;
        place(path, "synced/", entry->d_name, "");
        unlink(path);
    }
    if (synced) closedir(synced);
}

static void happen(int error) {
    char faults[PATH_MAX];
    place(faults, "faults", "", "");
    unlink(faults);
    if (error == DEATH) kill(getpid(), SIGKILL);
}

static int sync_to_disk(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    if (!name) return real(fd);
    pthread_mutex_lock(&lock);
    int error = fault("sync", name);
    note(name, error);
    if (error) {
        happen(error);
        if (*name) memset(dirty_pages(name), 0, PAGES);
    } else if (*name) {
        put_pages(fd, name);
    } else {
        put_entries();
    }
    if (!error && fault("synced", name)) happen(DEATH);
    pthread_mutex_unlock(&lock);
    errno = error;
    return error ? -1 : 0;
}

int fsync(int fd) { return sync_to_disk(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_to_disk(fd, REAL(fdatasync)); }

static ssize_t write_at(int fd, const void *bytes, size_t length, off_t at, int moves) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    ssize_t (*by_place)(int, const void *, size_t) = REAL(write);
    ssize_t (*by_offset)(int, const void *, size_t, off_t) = REAL(pwrite);
    if (!name) return moves ? by_place(fd, bytes, length) : by_offset(fd, bytes, length, at);
    pthread_mutex_lock(&lock);
    int error = fault("write", name);
    ssize_t written = -1;
    if (!error) {
        written = moves ? by_place(fd, bytes, length) : by_offset(fd, bytes, length, at);
        error = errno;
        if (written > 0) soil(name, at, at + written);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return write_at(fd, bytes, length, at, 0); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) { return write_at(fd, bytes, length, at, 0); }
ssize_t write(int fd, const void *bytes, size_t length) {
    return write_at(fd, bytes, length, lseek(fd, 0, SEEK_CUR), 1);
}
