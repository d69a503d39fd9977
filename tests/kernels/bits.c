/* Prints what the portable loops make of numbers that come out alike everywhere: see test_builds.py. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

void dualform_use(int32_t form);
void dualform_quantise(const keys_t *, const float *, int64_t, int64_t, int64_t);
void dualform_canonical(const float *const *, const int64_t *, const float *, int64_t, int64_t, double *, double *);
void dualform_canonical_rows(const double *, int64_t, const float *, int64_t, double *, double *);
void dualform_sizes(const float *const *, const float *, int64_t, int64_t, float *);
void dualform_weigh(const float *const *, const double *, const double *, int64_t, int64_t, double *, double *,
                    double *, double *);
void dualform_sum_runs(const runs_t *, const scores_t *, double *, double *);
void dualform_add_runs(const float *const *, const int64_t *, int64_t, int64_t, double *, float *, float *);
int32_t dualform_outer(const float *, int64_t, int64_t, int64_t, const double *, const float *, int64_t, double *,
                       double *, double *);
void dualform_distances(const double *, double *, const double *, const double *, const int64_t *, int64_t, double *);
void dualform_adam(const adam_t *, int64_t, double *, double *, double *, const double *, double *, double *,
                   const double *);

enum { N = 37, D = 101 };

static uint64_t state = 1;

static double number(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int64_t)(state >> 11) - (INT64_C(1) << 52)) / (double)(INT64_C(1) << 50);
}

static void print(const char *name, const void *bytes, size_t size) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    printf("%s %016" PRIx64 "\n", name, hash);
}

int main(void) {
    static float keys[N][D], errors[N][D];
    static double wide[N][D], directions[D], terms[128], scores[N], weighted[D][DIRECTIONS], summed[D], squares[2];
    static double parts[1][5], vectors[7][D];
    static uint8_t codes[(N + ROWS - 1) / ROWS * ROWS * (D + 3) / 4 * 4];
    static float numbers[4][(N + ROWS - 1) / ROWS * ROWS];
    const float *at[N];
    int64_t query[N];
    dualform_use(PORTABLE_FORM);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < D; c++) keys[i][c] = (float)number(), errors[i][c] = (float)number(), wide[i][c] = number();
        at[i] = keys[i], query[i] = (7 * i) % N;
    }
    for (int c = 0; c < D; c++) {
        directions[c] = number();
        for (int v = 0; v < 7; v++) vectors[v][c] = number();
        vectors[2][c] *= vectors[2][c]; /* squares */
    }
    dualform_canonical(at, query, errors[0], N, D, terms, scores);
    print("canonical", scores, sizeof scores);
    dualform_canonical_rows(wide[0], N, errors[3], D, terms, scores);
    print("canonical rows", scores, sizeof scores);
    static float sizes[N];
    static double sum[D], rows[3][D];
    dualform_sizes(at, errors[1], N, D, sizes);
    print("sizes", sizes, sizeof sizes);
    dualform_weigh(at, wide[0], wide[1], N, D, sum, rows[0], rows[1], rows[2]);
    print("weighed rows", rows, sizeof rows);
    static float middle[D], off[D];
    dualform_add_pairs(keys[0], errors[0], keys[1], errors[1], 0.5f, D, middle, off);
    print("pairs", middle, sizeof middle);
    print("errors of pairs", off, sizeof off);
    const int64_t begins[4] = {0, 5, 6, N}, groups[3] = {0, 0, 1};
    const double times[3] = {2.0, 3.0, 1.0};
    const runs_t runs = {begins, groups, times, 3};
    const scores_t absolute = {wide[0], NULL, NULL, D, 0, D, D}, deviations = {NULL, keys[0], errors[0], D, D, D, D};
    static double by_group[3][2][D];
    dualform_sum_runs(&runs, &absolute, NULL, by_group[0][0]);
    dualform_sum_runs(&runs, &deviations, by_group[1][0], by_group[2][0]);
    print("sums by group", by_group, sizeof by_group);
    dualform_add_runs(at, begins, 3, D, rows[0], sizes, sizes + 3);
    print("runs of rows", rows, sizeof rows);
    if (dualform_outer(keys[0], N, D, D, directions, errors[0], D, weighted[0], summed, squares)) return 1;
    print("outer", weighted, sizeof weighted);
    print("sums", summed, sizeof summed);
    print("squares", squares, sizeof squares);
    const adam_t how = {-1.0, 0.1, 0.1, 0.9, 0.01, 0.99, 0.3, 0.02, 1e-8, 0.999, 1};
    dualform_adam(&how, D, vectors[0], vectors[1], vectors[2], vectors[3], vectors[4], vectors[5], vectors[6]);
    print("adam", vectors, sizeof vectors);
    const int64_t starts[2] = {0, D};
    dualform_distances(vectors[0], vectors[1], vectors[2], vectors[3], starts, 1, parts[0]);
    print("distances", parts, sizeof parts);
    const keys_t coded = {codes, numbers[0], numbers[1], numbers[2], numbers[3], NULL, N, (D + 3) / 4, 0};
    dualform_quantise(&coded, keys[0], D, 0, N);
    print("codes", codes, sizeof codes);
    print("bounds", numbers, sizeof numbers);
    return 0;
}
