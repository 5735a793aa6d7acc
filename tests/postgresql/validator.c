/* A validator of PostgreSQL 18 (method oauth), for tests/e2e/oauth_postgresql.rs: what is a good token, and whose it is, says the file `tokens` in the data
 * directory, in lines of a digit (1: it is good), a name and the token.
 *
 * PostgreSQL's headers are not where the tests' build of it is. What is declared here is the interface as the chapter "OAuth Validator Modules" of its
 * documentation has it, and the magic block of a module of version 18. The server refuses a module that differs. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern char *pstrdup(const char *text);

struct magic {
    int length;
    int version, arguments, keys, name_length, float8_by_value;
    char extra[32];
    const char *name, *module_version;
};

struct result {
    bool authorized;
    char *name;
};

struct callbacks {
    uint32_t magic;
    void (*start)(void *state);
    void (*stop)(void *state);
    bool (*validate)(const void *state, const char *token, const char *role, struct result *result);
};

const struct magic *Pg_magic_func(void) {
    static const struct magic magic = {sizeof magic, 1800, 100, 32, 64, 1, "PostgreSQL", NULL, NULL};
    return &magic;
}

static bool validate(const void *state, const char *token, const char *role, struct result *result) {
    static char line[20000];
    FILE *tokens = fopen("tokens", "r");
    (void)state;
    (void)role;
    if (tokens == NULL) return false;
    while (fgets(line, sizeof line, tokens) != NULL) {
        char *good = strtok(line, " "), *name = strtok(NULL, " "), *known = strtok(NULL, "\n");
        if (known != NULL && strcmp(known, token) == 0) {
            result->authorized = *good == '1';
            result->name = pstrdup(name);
        }
    }
    fclose(tokens);
    return true;
}

const struct callbacks *_PG_oauth_validator_module_init(void) {
    static const struct callbacks callbacks = {0x20250220, NULL, NULL, validate};
    return &callbacks;
}
