// Tries operations inside of a sandbox for the tests, and reports each result on descriptor 0 in a line of its own:
//   blocked WHAT ERRNO     it was refused
//   BREACH WHAT            it worked
//   said TEXT              something that the test asked for
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pwd.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void line(const char *form, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, form);
    int length = vsnprintf(text, sizeof text - 1, form, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 2) length = sizeof text - 2;
    text[length++] = '\n';
    if (write(0, text, length) != length) _exit(99);
}

// Prints the result of a call that must fail.
static void tell(const char *what, long result) {
    if (result < 0) line("blocked %s %s", what, strerrorname_np(errno));
    else line("BREACH %s", what);
}

static void try_read(const char *path) {
    char byte;
    int fd = open(path, O_RDONLY);
    if (fd < 0) { tell(path, -1); return; }
    struct stat stat;
    fstat(fd, &stat);
    if (S_ISDIR(stat.st_mode)) line("BREACH %s is a folder here", path);
    else tell(path, read(fd, &byte, 1) == 1 ? 1 : (errno = errno ? errno : EIO, -1));
    close(fd);
}

static void files(int count, char **paths) {
    for (int i = 0; i < count; i++) {
        char path[8192];
        try_read(paths[i]);
        const char *ways[] = {"/proc/self/root%s", "/proc/1/root%s", "/proc/1/cwd/../../../..%s", "/package/../../..%s", "/tmp/../..%s"};
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
            snprintf(path, sizeof path, ways[way], paths[i]);
            try_read(path);
        }
    }
    for (int fd = 1; fd < 1024; fd++) {
        int up = openat(fd, "..", O_RDONLY | O_DIRECTORY);
        if (up >= 0) line("BREACH descriptor %d is a folder", fd);
    }
}

static void processes(pid_t outside) {
    char path[64];
    char byte[8];
    struct iovec here = {byte, sizeof byte}, there = {(void *)&outside, sizeof byte};
    tell("kill", kill(outside, SIGCONT));
    tell("pidfd_open", syscall(SYS_pidfd_open, outside, 0));
    pid_t targets[] = {outside, 1};
    for (int i = 0; i < 2; i++) {
        tell("ptrace", ptrace(PTRACE_ATTACH, targets[i], 0, 0));
        tell("ptrace_seize", ptrace(PTRACE_SEIZE, targets[i], 0, 0));
        tell("process_vm_readv", process_vm_readv(targets[i], &here, 1, &there, 1, 0));
        tell("process_vm_writev", process_vm_writev(targets[i], &here, 1, &there, 1, 0));
        const char *names[] = {"mem", "environ", "maps", "fd/0", "root/etc/passwd", "task/1/mem", "auxv", "stack"};
        for (unsigned name = 0; name < sizeof names / sizeof *names; name++) {
            snprintf(path, sizeof path, "/proc/%d/%s", targets[i], names[name]);
            try_read(path);
        }
        tell("kcmp", syscall(SYS_kcmp, getpid(), targets[i], 0, 0, 0));
        int pidfd = syscall(SYS_pidfd_open, targets[i], 0);
        if (pidfd >= 0) tell("pidfd_getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0));
    }
    kill(1, SIGKILL);
    kill(1, SIGTERM);
    tell("ending init", getppid() == 1 ? (errno = EPERM, -1) : 0);
    tell("prlimit", prlimit(outside, RLIMIT_CORE, NULL, &(struct rlimit){0}));
    tell("setpriority", setpriority(PRIO_PROCESS, outside, 0));
    tell("sched_setaffinity of another", sched_setaffinity(outside, 8, &(cpu_set_t){{1}}));
    tell("real-time priority", sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}));
}

static void sockets(void) {
    int families[] = {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH, AF_XDP};
    int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    char what[64];
    for (unsigned family = 0; family < sizeof families / sizeof *families; family++)
        for (unsigned type = 0; type < sizeof types / sizeof *types; type++) {
            snprintf(what, sizeof what, "socket %d %d", families[family], types[type]);
            tell(what, socket(families[family], types[type], 0));
        }
}

// Descriptor 0 is a TCP connection of the host's network: it must not lead anywhere else.
static void reconnect(int port) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    struct iovec byte = {"x", 1};
    struct msghdr message = {.msg_name = &there, .msg_namelen = sizeof there, .msg_iov = &byte, .msg_iovlen = 1};
    int own = dup(0);
    tell("connect to nowhere", connect(own, &nowhere, sizeof nowhere));
    tell("connect", connect(own, (void *)&there, sizeof there));
    tell("bind", bind(own, (void *)&there, sizeof there));
    tell("listen", listen(own, 1));
    tell("accept", accept(own, NULL, NULL));
    tell("sendto fast open", sendto(own, "x", 1, MSG_FASTOPEN, (void *)&there, sizeof there));
    tell("sendmsg fast open", sendmsg(own, &message, MSG_FASTOPEN));
    tell("sendmmsg fast open", sendmmsg(own, &(struct mmsghdr){.msg_hdr = message}, 1, MSG_FASTOPEN));
}

// Tries to change and watch a file that it may not open, and one that it may read.
static void touch(const char *path, const char *readable) {
    int fd = open(readable, O_RDONLY);
    tell("open a readable file", fd < 0 ? 0 : (errno = EPERM, -1));
    tell("fchmod", fchmod(fd, 0644));
    tell("futimens", futimens(fd, NULL));
    tell("chmod", chmod(path, 0777));
    tell("fchmodat", fchmodat(AT_FDCWD, path, 0777, 0));
    tell("utimensat", utimensat(AT_FDCWD, path, NULL, 0));
    tell("utimes", utimes(path, NULL));
    tell("truncate", truncate(path, 0));
    tell("chown", chown(path, getuid(), getgid()));
    tell("setxattr", syscall(SYS_setxattr, path, "user.x", "x", 1, 0));
    tell("link", link(path, "/tmp/link"));
    tell("rename", rename(path, "/tmp/renamed"));
    tell("unlink", unlink(path));
    tell("inotify", inotify_add_watch(inotify_init1(0), path, IN_ALL_EVENTS));
}

static int leave(void *unused) {
    (void)unused;
    _exit(0);
}

static void namespaces(void) {
    static char stack[65536];
    int kinds[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP};
    struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        tell("unshare", unshare(kinds[kind]));
        tell("clone", clone(leave, stack + sizeof stack, kinds[kind] | SIGCHLD, NULL));
    }
    tell("clone3", syscall(SYS_clone3, &arguments, sizeof arguments));
    tell("setns", setns(open("/proc/self/ns/user", O_RDONLY), 0));
    tell("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    tell("remount", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    tell("bind", mount("/package", "/tmp", NULL, MS_BIND, NULL));
    tell("umount", umount2("/proc", MNT_DETACH));
    tell("pivot_root", syscall(SYS_pivot_root, ".", "."));
    tell("chroot", chroot("/tmp"));
    tell("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    tell("move_mount", syscall(SYS_move_mount, AT_FDCWD, "/tmp", AT_FDCWD, "/proc", 0));
    tell("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    tell("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, NULL, 0));
    tell("sethostname", sethostname("x", 1));
}

// Tries to mount and unmount: a mount could lead out of the root folder.
static void mounts(void) {
    tell("mount", mount("none", "/etc", "tmpfs", 0, NULL));
    tell("remount", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    tell("umount", umount2("/proc", MNT_DETACH));
    tell("pivot_root", syscall(SYS_pivot_root, ".", "."));
    tell("chroot", chroot("/etc"));
    tell("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    tell("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    tell("mknod", mknod("/etc/disk", S_IFBLK | 0600, makedev(254, 0)));
    tell("setuid", setuid(0));
    tell("sethostname", sethostname("x", 1));
}

static void calls(void) {
    char memory[4096] = {0};
#define TRY(name, ...) tell(#name, syscall(SYS_##name, ##__VA_ARGS__))
    TRY(bpf, 0, memory, 64);
    TRY(kexec_load, 0, 0, 0, 0);
    TRY(kexec_file_load, -1, -1, 0, "", 0);
    TRY(keyctl, 0, -3, 0, 0, 0);
    TRY(add_key, "user", "x", "y", 1, -3);
    TRY(request_key, "user", "x", NULL, -3);
    TRY(userfaultfd, 1);
    TRY(io_uring_setup, 1, memory);
    TRY(io_uring_enter, 0, 0, 0, 0, 0, 0);
    TRY(io_uring_register, 0, 0, 0, 0);
    TRY(perf_event_open, memory, 0, -1, -1, 0);
    TRY(init_module, memory, 0, "");
    TRY(finit_module, 0, "", 0);
    TRY(delete_module, "x", 0);
    TRY(open_by_handle_at, 0, memory, 0);
    TRY(name_to_handle_at, AT_FDCWD, "/", memory, memory, 0);
    TRY(swapon, "/tmp", 0);
    TRY(reboot, 0, 0, 0, 0);
    TRY(settimeofday, memory, 0);
    TRY(clock_settime, 0, memory);
    TRY(adjtimex, memory);
    TRY(syslog, 3, memory, 10);
    TRY(acct, "/tmp/x");
    TRY(quotactl, 0, 0, 0, 0);
    TRY(ptrace, PTRACE_TRACEME, 0, 0, 0);
    TRY(personality, 0x0040000);
    TRY(setuid, 0);
    TRY(setgid, 0);
    TRY(setgroups, 1, memory);
    TRY(fanotify_init, 0, 0);
    TRY(move_pages, 1, 0, 0, 0, 0, 0);
    TRY(migrate_pages, 1, 0, 0, 0);
    TRY(mknodat, AT_FDCWD, "/tmp/disk", S_IFBLK | 0600, makedev(254, 0));
    TRY(mknodat, AT_FDCWD, "/tmp/mem", S_IFCHR | 0600, makedev(1, 1));
    TRY(vhangup);
    TRY(process_madvise, 0, 0, 0, 0, 0);
    TRY(capset, (unsigned[]){0x20080522, 0}, (unsigned[]){1, 1, 1, 0, 0, 0});
#ifdef __x86_64__
    TRY(iopl, 3);
    TRY(ioperm, 0x80, 1, 1);
    TRY(modify_ldt, 0, memory, 16);
    tell("a call of the x32 interface", syscall(0x40000000 | SYS_getpid));
#endif
    tell("typing into a terminal", ioctl(1, TIOCSTI, "x"));
}

static void forks(void) {
    int count = 0;
    while (count < 100000) {
        pid_t child = fork();
        if (child < 0) break;
        if (child == 0) { pause(); _exit(0); }
        count++;
    }
    line("said %d %s", count, strerrorname_np(errno));
}

// Starts processes, `count` with this one, that never sleep.
static void spin(int count) {
    for (int i = 1; i < count; i++) {
        pid_t child = fork();
        if (child < 0) _exit(96);
        if (child == 0) for (volatile unsigned n = 0;; n++) {}
    }
    line("said ready");
    for (volatile unsigned n = 0;; n++) {}
}

static void memory(const char *how) {
    size_t piece = 1 << 20;
    if (!strcmp(how, "forked")) for (int i = 0; i < 3; i++) if (!fork()) break;
    int file = memfd_create("bomb", 0);
    for (size_t at = 0; at < (1ull << 40); at += piece) {
        void *place;
        if (!strcmp(how, "shared")) {
            if (ftruncate(file, at + piece)) _exit(7);
            place = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
        } else {
            place = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        if (place == MAP_FAILED) _exit(8);
        memset(place, 1, piece);
    }
}

// Fills a file, and then its file system with empty files in a folder. Prints how many bytes and files fitted.
static void fill(const char *file, const char *folder) {
    static char block[65536];
    long written = 0, count = 0;
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    for (ssize_t wrote; (wrote = write(fd, block, sizeof block)) > 0;) written += wrote;
    line("said %ld %s", written, strerrorname_np(errno));
    unlink(file);
    close(fd);
    for (char path[64]; count < 10000000; count++) {
        snprintf(path, sizeof path, "%s/%ld", folder, count);
        if ((fd = open(path, O_WRONLY | O_CREAT, 0600)) < 0) break;
        close(fd);
    }
    line("said %ld files %s", count, strerrorname_np(errno));
}

static void disk(void) {
    const char *elsewhere[] = {"/x", "/package/x", "/usr/lib/x", "/dev/x", "/etc/x", "/proc/x", "/program"};
    for (unsigned i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        tell(elsewhere[i], open(elsewhere[i], O_WRONLY | O_CREAT, 0600));
    fill("/tmp/fill", "/tmp");
    int fd;
    tell("executing what was written", (fd = open("/tmp/0", O_RDONLY), mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0)) == MAP_FAILED ? -1 : 0);
}

// Returns the first bytes of a file, or the name of the error.
static const char *beginning(const char *path) {
    static char text[64];
    int fd = open(path, O_RDONLY);
    if (fd < 0) return strerrorname_np(errno);
    ssize_t length = read(fd, text, sizeof text - 1);
    text[length > 0 ? length : 0] = 0;
    close(fd);
    // For a program, keeps only the four bytes that identify the format.
    if (text[0] == 0x7f) text[4] = 0;
    return text;
}

// Prints each file's content at first, after a write, and after its removal.
static void change(int count, char **paths) {
    for (int i = 0; i < count; i++) {
        char before[64], written[64];
        strcpy(before, beginning(paths[i]));
        if (rename(paths[i], "/aside") < 0 && errno != ENOENT) line("said renaming %s", strerrorname_np(errno));
        int fd = open(paths[i], O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (fd < 0 || write(fd, "changed", 7) != 7) line("said writing %s", strerrorname_np(errno));
        close(fd);
        strcpy(written, beginning(paths[i]));
        if (unlink(paths[i]) < 0) line("said removing %s", strerrorname_np(errno));
        line("said %s %s, %s, %s", paths[i], before, written, beginning(paths[i]));
    }
}

// Fills the writable file system of a container.
static void flood(void) {
    const char *elsewhere[] = {"/package/x", "/dev/x", "/proc/x", "/proc/self/oom_score_adj"};
    for (unsigned i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        tell(elsewhere[i], open(elsewhere[i], O_WRONLY | O_CREAT, 0600));
    tell("a device", mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0)));
    tell("a node 1, 1", mknod("/mem", S_IFCHR | 0600, makedev(1, 1)));
    fill("/fill", "/etc");
}

// Starts processes that try to survive, and hold descriptor 0.
static void survive(void) {
    for (int i = 0; i < 3; i++)
        if (!fork()) {
            setsid();
            if (fork()) _exit(0);
            setsid();
            for (int signal = 1; signal < 65; signal++) sigaction(signal, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
            line("said hidden");
            for (;;) pause();
        }
}

static void show(char **environment) {
    char path[64], target[256];
    for (; *environment; environment++) line("said env %s", *environment);
    for (int fd = 0; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0) line("said fd %d %.*s", fd, (int)length, target);
    }
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    line("said cores %d", CPU_COUNT(&cores));
    line("said user %d pid %d parent %d", getuid(), getpid(), getppid());
}

// First line of a file, or the error.
static const char *first_line(const char *path) {
    static char text[256];
    FILE *file = fopen(path, "r");
    if (!file) return strerrorname_np(errno);
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    return text;
}

// Number of lines in a file that begin with a word and a digit, with characters of `between` allowed in between.
static int numbered(const char *path, const char *word, const char *between) {
    char text[4096];
    int count = 0;
    size_t length = strlen(word);
    FILE *file = fopen(path, "r");
    while (file && fgets(text, sizeof text, file)) {
        if (strncmp(text, word, length)) continue;
        char *rest = text + length + strspn(text + length, between);
        count += *rest >= '0' && *rest <= '9';
    }
    if (file) fclose(file);
    return count;
}

// Prints what programs find out about their machine and their user.
static void view(int count, char **paths) {
    line("said memory %s", first_line("/proc/meminfo"));
    line("said cores %d %d %ld", numbered("/proc/cpuinfo", "processor", "\t: "), numbered("/proc/stat", "cpu", ""), sysconf(_SC_NPROCESSORS_ONLN));
    double load[3];
    line("said load %d", getloadavg(load, 3));
    struct passwd *user = getpwuid(getuid());
    line("said name %s", user ? user->pw_name : "none");
    time_t summer = 1751328000;
    struct tm local;
    localtime_r(&summer, &local);
    line("said time %s%+ld", local.tm_zone, local.tm_gmtoff);
    char own[32] = "";
    readlink("/proc/self", own, sizeof own - 1);
    line("said self %s of %d", own, getpid());
    mode_t mask = umask(0);
    umask(mask);
    line("said mask %03o", mask);
    for (int i = 0; i < count; i++) line("said %s %s", paths[i], first_line(paths[i]));
}

// Shares named memory and a named semaphore between two processes.
static void share(void) {
    int fd = shm_open("/memory", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, 4096)) { line("said memory %s", strerrorname_np(errno)); return; }
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    sem_t *semaphore = sem_open("/semaphore", O_CREAT | O_EXCL, 0600, 0);
    if (semaphore == SEM_FAILED) { line("said semaphore %s", strerrorname_np(errno)); return; }
    pid_t child = fork();
    if (!child) {
        int other = shm_open("/memory", O_RDWR, 0);
        int *there = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
        if (there != MAP_FAILED) *there = 42;
        sem_post(sem_open("/semaphore", 0));
        _exit(0);
    }
    sem_wait(semaphore);
    line("said shared %d", *shared);
    waitpid(child, NULL, 0);
    tell("executing what is shared", mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
}

/* Prints the state of each wall: a call could not show it where another wall stops the call as well. */
static void walls(void) {
    char text[256], word[32], value[32];
    struct stat first = {0};
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(text, sizeof text, status))
        if (sscanf(text, "%31[^:]: %31s", word, value) == 2) line("said %s %s", word, value);
    FILE *groups = fopen("/proc/self/cgroup", "r");
    while (groups && fgets(text, sizeof text, groups)) line("said group %.*s", (int)strcspn(text, "\n"), text);
    gethostname(text, sizeof text);
    line("said host %s", text);
    struct rlimit core;
    getrlimit(RLIMIT_CORE, &core);
    line("said core %ld", (long)core.rlim_max);
    stat("/proc/1/status", &first);
    line("said first process of %s", first.st_uid == getuid() ? "this user" : "another");
}

int main(int count, char **words, char **environment) {
    const char *act = count > 1 ? words[1] : "exit";
    const char *word = count > 2 ? words[2] : "0";
    int number = atoi(word);
    char byte;
    if (!strcmp(act, "exit")) return number;
    if (!strcmp(act, "raise")) { kill(getpid(), number); return 98; }
    if (!strcmp(act, "now")) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        line("%ld", now.tv_sec * 1000000000L + now.tv_nsec);
        return 0;
    }
    if (!strcmp(act, "abort")) abort();
    if (!strcmp(act, "wait")) { line("said ready"); return read(0, &byte, 1) == 1 ? number : 97; }
    if (!strcmp(act, "print")) { puts(word); fprintf(stderr, "%s\n", word); return 0; }
    if (!strcmp(act, "show")) show(environment);
    if (!strcmp(act, "files")) files(count - 2, words + 2);
    if (!strcmp(act, "processes")) processes(number);
    if (!strcmp(act, "sockets")) sockets();
    if (!strcmp(act, "walls")) walls();
    if (!strcmp(act, "view")) view(count - 2, words + 2);
    if (!strcmp(act, "share")) share();
    if (!strcmp(act, "fill")) { fill("/dev/shm/fill", "/dev/shm"); return 0; }
    if (!strcmp(act, "reconnect")) reconnect(number);
    if (!strcmp(act, "touch")) touch(word, words[3]);
    if (!strcmp(act, "namespaces")) namespaces();
    if (!strcmp(act, "mounts")) mounts();
    if (!strcmp(act, "calls")) calls();
    if (!strcmp(act, "forks")) { forks(); return 0; }
    if (!strcmp(act, "spin")) spin(number);
    if (!strcmp(act, "memory")) memory(word);
    if (!strcmp(act, "disk")) disk();
    if (!strcmp(act, "change")) change(count - 2, words + 2);
    if (!strcmp(act, "flood")) flood();
    if (!strcmp(act, "survive")) { survive(); pause(); }
    if (!strcmp(act, "orphan")) { survive(); usleep(100000); return number; }
    if (!strcmp(act, "output")) {
        tell("cutting off the output", ftruncate(2, 0));
        tell("opening the output", (number = open("/proc/self/fd/2", O_RDWR)) < 0 ? -1 : lseek(number, 0, SEEK_SET));
    }
    line("said done");
    return 0;
}
