/* Stands for Python: hands words, environment, directory and streams to the server of quick interpreters, and ends as
 * the fork did that it makes. What a fork cannot be, this becomes itself: a fresh Python. A program in C, as Python
 * itself would take longer to start than a fork of the server.
 *
 * Compiled with -DPYTHON="..." -DPLACE="..." for a server at this place (quick.py). The order is four bytes of length,
 * sent with the streams, and texts that end with a zero: number of words, words, variables, and the directory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;
static char *order;
static size_t used, room;

static void add(const char *text) {
    size_t length = strlen(text) + 1;
    while (used + length > room) {
        order = realloc(order, room = 2 * room + length);
        if (!order) abort();
    }
    memcpy(order + used, text, length);
    used += length;
}

static int has_other_files(void) {
    int found = 0;
    DIR *files = opendir("/proc/self/fd");
    if (!files) return 0;
    for (struct dirent *file; (file = readdir(files));)
        found |= file->d_name[0] != '.' && atoi(file->d_name) > 2 && atoi(file->d_name) != dirfd(files);
    closedir(files);
    return found;
}

static void be_python(char **words) {
    words[0] = PYTHON;
    execv(PYTHON, words);
    perror(PYTHON);
    _exit(127);
}

int main(int count, char **words) {
    int first = count > 1 && (!strcmp(words[1], "-u") || !strcmp(words[1], "-P")) ? 2 : 1;
    const char *begin = first < count ? words[first] : "-";
    if ((begin[0] == '-' && strcmp(begin, "-m") && strcmp(begin, "-c")) || has_other_files()) be_python(words);

    char number[16], *directory = getcwd(NULL, 0);
    snprintf(number, sizeof number, "%d", count - 1);
    add(number);
    for (int i = 1; i < count; i++) add(words[i]);
    for (char **one = environ; *one; one++) add(*one);
    add(directory ? directory : "/");

    struct sockaddr_un place = {.sun_family = AF_UNIX, .sun_path = PLACE};
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(server, (struct sockaddr *)&place, sizeof place)) {
        perror(PLACE);
        return 70;
    }
    unsigned length = used;
    int streams[] = {0, 1, 2};
    union { struct cmsghdr align; char room[CMSG_SPACE(sizeof streams)]; } control = {0};
    struct iovec head = {&length, sizeof length};
    struct msghdr message = {
        .msg_iov = &head, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){CMSG_LEN(sizeof streams), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(rights), streams, sizeof streams);
    if (sendmsg(server, &message, 0) < 0) {
        close(server);
        be_python(words); /* a stream is closed */
    }
    for (size_t sent = 0; sent < used;) {
        ssize_t more = send(server, order + sent, used - sent, 0);
        if (more <= 0) return 70;
        sent += more;
    }
    short status = 70;
    if (recv(server, &status, sizeof status, MSG_WAITALL) != sizeof status) return 70;
    if (status < 0) {
        if (status != -SIGKILL) signal(-status, SIG_DFL);
        kill(getpid(), -status);
    }
    _exit(status);
}
