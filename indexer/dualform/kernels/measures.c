/* What the recorder measures at every step of a training: matrices along directions, single entries of gradients, and
   sums by parameter. */

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- project and fold ----

   The recorder measures at every step of a training, so each of these takes one pass over its matrix: float32 numbers
   are widened once, and all sums are float64. Products are fused with these sums, by every form alike. */

#define BLOCK 32   /* rows that are folded while they lie in the cache, and how many of their columns */
#define PANEL 128
#define STREAMS 4  /* parts of a matrix that are read side by side */

/* Eight columns lie along eight directions. Two sums of each are added up side by side: of the first and of the second
   eight of sixteen columns. */
INLINE void project(const float *matrix, int64_t rows, int64_t columns, int64_t apart, const double *directions,
                    double *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * apart;
        double sums[2][DIRECTIONS] = {{0.0}};
        int64_t c = 0;
        for (; c + 2 * DIRECTIONS <= columns; c += 2 * DIRECTIONS)
            for (int k = 0; k < DIRECTIONS; k++) {
                const int64_t i = c + k, j = i + DIRECTIONS;
                sums[0][k] = fma(row[i], directions[i], sums[0][k]);
                sums[1][k] = fma(row[j], directions[j], sums[1][k]);
            }
        for (; c < columns; c++) sums[0][c % DIRECTIONS] = fma(row[c], directions[c], sums[0][c % DIRECTIONS]);
        for (int k = 0; k < DIRECTIONS; k++) out[r * DIRECTIONS + k] = sums[0][k] + sums[1][k];
    }
}

INLINE void fold(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * columns;
        for (int k = 0; k < DIRECTIONS; k++) {
            const double weight = weights[r * DIRECTIONS + k];
            for (int64_t c = 0; c < columns; c++) out[k * columns + c] = fma(weight, row[c], out[k * columns + c]);
        }
        double *summed = out + DIRECTIONS * columns, *squares = summed + columns;
        for (int64_t c = 0; c < columns; c++) {
            summed[c] += row[c];
            squares[c] += (double)row[c] * row[c];
        }
    }
}

NARROW_FORMS(project,
             (const float *matrix, int64_t rows, int64_t columns, int64_t apart, const double *directions, double *out),
             (matrix, rows, columns, apart, directions, out))
NARROW_FORMS(fold, (const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out),
             (matrix, rows, columns, weights, out))

#ifdef X86
VNNI INLINE __mmask8 first_of(int64_t count) { return count >= 8 ? 0xFF : count > 0 ? (__mmask8)((1 << count) - 1) : 0; }

VNNI INLINE __m512d widened(const float *numbers, __mmask8 there) {
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, numbers));
}

/* `count` rows (a constant), `apart` numbers from one to the next, filling rows of `out` that are `out_apart` rows apart.
   A register holds sums along all directions. */
VNNI INLINE void project_rows(const float *matrix, int64_t columns, int64_t apart, const double *directions, double *out,
                              int64_t out_apart, const int count) {
    __m512d sums[STREAMS][2];
    for (int r = 0; r < count; r++) sums[r][0] = sums[r][1] = _mm512_setzero_pd();
    int64_t c = 0;
    for (; c + 16 <= columns; c += 16)
        for (int i = 0; i < 2; i++) {
            const __m512d direction = _mm512_loadu_pd(directions + c + 8 * i);
            for (int r = 0; r < count; r++)
                sums[r][i] = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(matrix + r * apart + c + 8 * i)),
                                             direction, sums[r][i]);
        }
    for (; c < columns; c += 8) {
        const __mmask8 there = first_of(columns - c);
        const __m512d direction = _mm512_maskz_loadu_pd(there, directions + c);
        for (int r = 0; r < count; r++)
            sums[r][0] = _mm512_fmadd_pd(widened(matrix + r * apart + c, there), direction, sums[r][0]);
    }
    for (int r = 0; r < count; r++)
        _mm512_storeu_pd(out + r * out_apart * DIRECTIONS, _mm512_add_pd(sums[r][0], sums[r][1]));
}

/* What is waited for is memory: it answers soonest where a few places are read on from side by side. */
VNNI static void project_vnni(const float *matrix, int64_t rows, int64_t columns, int64_t apart,
                              const double *directions, double *out) {
    const int64_t part = rows / STREAMS;
    for (int64_t r = 0; r < part; r++)
        project_rows(matrix + r * apart, columns, part * apart, directions, out + r * DIRECTIONS, part, STREAMS);
    for (int64_t r = part * STREAMS; r < rows; r++)
        project_rows(matrix + r * apart, columns, apart, directions, out + r * DIRECTIONS, 1, 1);
}

/* Of a panel float32 [rows][PANEL] that lies in the cache, sixteen columns at a time: what is added up stays in
   registers. `out` is [DIRECTIONS + 2][apart]. */
VNNI static void fold_panel(const float *panel, int64_t rows, int64_t columns, const double *weights, double *out,
                            int64_t apart) {
    for (int64_t c = 0; c < columns; c += 16) {
        const __mmask8 there[2] = {first_of(columns - c), first_of(columns - c - 8)};
        __m512d sums[DIRECTIONS + 2][2];
        for (int k = 0; k < DIRECTIONS + 2; k++)
            for (int i = 0; i < 2; i++) sums[k][i] = _mm512_maskz_loadu_pd(there[i], out + k * apart + c + 8 * i);
        for (int64_t r = 0; r < rows; r++) {
            const __m512d x[2] = {widened(panel + r * PANEL + c, there[0]), widened(panel + r * PANEL + c + 8, there[1])};
            for (int k = 0; k < DIRECTIONS; k++) {
                const __m512d weight = _mm512_set1_pd(weights[r * DIRECTIONS + k]);
                for (int i = 0; i < 2; i++) sums[k][i] = _mm512_fmadd_pd(weight, x[i], sums[k][i]);
            }
            for (int i = 0; i < 2; i++) {
                sums[DIRECTIONS][i] = _mm512_add_pd(sums[DIRECTIONS][i], x[i]);
                sums[DIRECTIONS + 1][i] = _mm512_fmadd_pd(x[i], x[i], sums[DIRECTIONS + 1][i]);
            }
        }
        for (int k = 0; k < DIRECTIONS + 2; k++)
            for (int i = 0; i < 2; i++) _mm512_mask_storeu_pd(out + k * apart + c + 8 * i, there[i], sums[k][i]);
    }
}

/* Columns of many rows lie so far apart that each would be waited for: panels are copied, row after row. */
VNNI static void fold_vnni(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
    float panel[BLOCK * PANEL];
    for (int64_t r = 0; r < rows; r += BLOCK) {
        const int64_t count = rows - r < BLOCK ? rows - r : BLOCK;
        for (int64_t c = 0; c < columns; c += PANEL) {
            const int64_t width = columns - c < PANEL ? columns - c : PANEL;
            for (int64_t i = 0; i < count; i++)
                memcpy(panel + i * PANEL, matrix + (r + i) * columns + c, (size_t)width * sizeof(float));
            fold_panel(panel, count, width, weights + r * DIRECTIONS, out + c, columns);
        }
    }
}
#endif

/* Rows of float32 [columns], `apart` numbers from one to the next: column c times directions[c], added up along
   direction c % DIRECTIONS. Fills float64 [rows][DIRECTIONS]. */
void dualform_project(const float *matrix, int64_t rows, int64_t columns, int64_t apart, const double *directions,
                      double *out) {
    CALL(project, matrix, rows, columns, apart, directions, out);
}

/* Several matrices, or where `directions` is NULL vectors of `rows` numbers, which are widened: each fills its place in
   `out`. One without an address is left out. */
void dualform_project_all(const matrix_t *matrices, int64_t count, double *out) {
    for (const matrix_t *m = matrices; m < matrices + count; m++) {
        if (m->numbers == NULL) continue;
        if (m->directions != NULL)
            dualform_project(m->numbers, m->rows, m->columns, m->columns, m->directions, out + m->start);
        else
            for (int64_t i = 0; i < m->rows; i++) out[m->start + i] = m->numbers[i];
    }
}

/* Of n slots with keys float32 [n][d_in], `apart` numbers from one to the next, and errors float32 [n][d_out]: adds the
   sum of error (key R) to float64 [d_out][DIRECTIONS], fills the sum of errors [d_out], and the sums of the squares of
   the errors and of the projected keys [2]. Returns 1 where there is no memory, else 0. */
int32_t dualform_outer(const float *keys, int64_t n, int64_t d_in, int64_t apart, const double *directions,
                       const float *errors, int64_t d_out, double *weighted, double *summed, double *squares) {
    double *along = malloc((size_t)(n * DIRECTIONS + 1) * sizeof(double));
    double *folded = calloc((size_t)((DIRECTIONS + 2) * d_out + 1), sizeof(double));
    if (along == NULL || folded == NULL) {
        free(along);
        free(folded);
        return 1;
    }
    dualform_project(keys, n, d_in, apart, directions, along);
    CALL(fold, errors, n, d_out, along, folded);
    squares[0] = squares[1] = 0.0;
    for (int64_t c = 0; c < d_out; c++) {
        for (int k = 0; k < DIRECTIONS; k++) weighted[c * DIRECTIONS + k] += folded[k * d_out + c];
        summed[c] = folded[DIRECTIONS * d_out + c];
        squares[0] += folded[(DIRECTIONS + 1) * d_out + c];
    }
    for (int64_t i = 0; i < n * DIRECTIONS; i++) squares[1] += along[i] * along[i];
    free(along);
    free(folded);
    return 0;
}

/* ---- entries ---- */

#define RUN 16    /* neighbouring entries, one row and one column on from each to the next, that are summed together */
#define SLOTS 64  /* whose rows lie in the cache while every entry takes its two numbers from each */

/* `length` entries, a constant. */
INLINE void add_neighbours(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n,
                           const int length, double *sums, double *magnitudes) {
    double sum[RUN] = {0.0}, magnitude[RUN] = {0.0};
    for (int64_t t = 0; t < n; t++)
        for (int e = 0; e < length; e++) {
            const double term = (double)errors[t * errors_apart + e] * (double)keys[t * keys_apart + e];
            sum[e] += term;
            magnitude[e] += fabs(term);
        }
    for (int e = 0; e < length; e++) {
        sums[e] += sum[e];
        magnitudes[e] += magnitude[e];
    }
}

INLINE void add_run(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n,
                    double *sums, double *magnitudes) {
    add_neighbours(keys, keys_apart, errors, errors_apart, n, RUN, sums, magnitudes);
}

NARROW_FORMS(add_run,
             (const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n, double *sums,
              double *magnitudes),
             (keys, keys_apart, errors, errors_apart, n, sums, magnitudes))

#ifdef X86
/* The same sums in the same order. */
VNNI static void add_run_vnni(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart,
                              int64_t n, double *sums, double *magnitudes) {
    __m512d sum[2], magnitude[2];
    for (int i = 0; i < 2; i++) sum[i] = magnitude[i] = _mm512_setzero_pd();
    for (int64_t t = 0; t < n; t++)
        for (int i = 0; i < 2; i++) {
            const __m512d term = _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(errors + t * errors_apart + 8 * i)),
                                               _mm512_cvtps_pd(_mm256_loadu_ps(keys + t * keys_apart + 8 * i)));
            sum[i] = _mm512_add_pd(sum[i], term);
            magnitude[i] = _mm512_add_pd(magnitude[i], _mm512_abs_pd(term));
        }
    for (int i = 0; i < 2; i++) {
        _mm512_storeu_pd(sums + 8 * i, _mm512_add_pd(_mm512_loadu_pd(sums + 8 * i), sum[i]));
        _mm512_storeu_pd(magnitudes + 8 * i, _mm512_add_pd(_mm512_loadu_pd(magnitudes + 8 * i), magnitude[i]));
    }
}
#endif

static int is_run(const int32_t *columns, const int32_t *rows) {
    int found = 1;
    for (int e = 1; e < RUN; e++) found &= columns[e] == columns[0] + e && rows[e] == rows[0] + e;
    return found;
}

/* Of n slots with rows of keys and of errors, float32, which lie `keys_apart` and `errors_apart` numbers from one to the
   next: adds to each of `count` entries the sum over slots of error[rows[e]] key[columns[e]], and that of its magnitude.
   Soonest where entries lie in runs. */
void dualform_entries(const float *keys, int64_t n, int64_t keys_apart, const int32_t *columns, const float *errors,
                      int64_t errors_apart, const int32_t *rows, int64_t count, double *sums, double *magnitudes) {
    for (int64_t t = 0; t < n; t += SLOTS) {
        const int64_t slots = n - t < SLOTS ? n - t : SLOTS;
        const float *key = keys + t * keys_apart, *error = errors + t * errors_apart;
        for (int64_t e = 0; e < count;) {
            const float *own = key + columns[e], *other = error + rows[e];
            if (e + RUN <= count && is_run(columns + e, rows + e)) {
                CALL(add_run, own, keys_apart, other, errors_apart, slots, sums + e, magnitudes + e);
                e += RUN;
            } else {
                add_neighbours(own, keys_apart, other, errors_apart, slots, 1, sums + e, magnitudes + e);
                e++;
            }
        }
    }
}

/* ---- distances ---- */

#define SUMS 5
#define LANES 8 /* sums that do not wait for one another */

INLINE void add_squares(const double *of, double *expected, const double *rebuilt, const double *start,
                        int64_t count, double sums[SUMS][LANES]) {
    for (int64_t l = 0; l < count; l++) {
        const double x = of[l], e = x - expected[l], r = x - rebuilt[l], s = x - start[l];
        sums[0][l] += e * e;
        sums[1][l] += r * r;
        sums[2][l] += s * s;
        sums[3][l] += x * x;
        sums[4][l] += expected[l] * expected[l];
        expected[l] = x;
    }
}

INLINE void distances(const double *of, double *expected, const double *rebuilt, const double *start,
                      const int64_t *starts, int64_t parts, double *out) {
    for (int64_t p = 0; p < parts; p++) {
        double sums[SUMS][LANES] = {{0.0}};
        int64_t i = starts[p];
        const int64_t stop = starts[p + 1];
        for (; i + LANES <= stop; i += LANES)
            add_squares(of + i, expected + i, rebuilt + i, start + i, LANES, sums);
        add_squares(of + i, expected + i, rebuilt + i, start + i, stop - i, sums);
        for (int k = 0; k < SUMS; k++) {
            out[p * SUMS + k] = 0.0;
            for (int l = 0; l < LANES; l++) out[p * SUMS + k] += sums[k][l];
        }
    }
}

ALL_FORMS(distances,
          (const double *of, double *expected, const double *rebuilt, const double *start, const int64_t *starts,
           int64_t parts, double *out),
          (of, expected, rebuilt, start, starts, parts, out))

/* Of each part of float64 vectors, from starts[p] to starts[p + 1]: the squared distances of the first vector from the
   three others, its own square and that of the second one, which then becomes the first. Fills float64 [parts][5]. */
void dualform_distances(const double *of, double *expected, const double *rebuilt, const double *start,
                        const int64_t *starts, int64_t parts, double *out) {
    CALL(distances, of, expected, rebuilt, start, starts, parts, out);
}

INLINE double turned(const double *v, const double *along) {
    return ((v[0] * along[0] + v[1] * along[1]) + (v[2] * along[2] + v[3] * along[3])) +
           ((v[4] * along[4] + v[5] * along[5]) + (v[6] * along[6] + v[7] * along[7]));
}

INLINE void compare_part(const double *applied, const double *recorded, int64_t count, const double *along, double *out) {
    double sums[3][LANES] = {{0.0}}, lefts[LANES] = {0.0}, total[4] = {0.0};
    const int64_t apart = along != NULL ? DIRECTIONS : 1;
    for (int64_t i = 0; i < count; i++) {
        const double *a = applied + i * apart, *r = recorded + i * apart;
        const double x = along != NULL ? turned(a, along) : *a, y = along != NULL ? turned(r, along) : *r;
        sums[0][i % LANES] += x * y;
        sums[1][i % LANES] += x * x;
        sums[2][i % LANES] += y * y;
    }
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < LANES; l++) total[k] += sums[k][l];
    const double factor = total[2] > 0.0 ? total[0] / total[2] : 1.0;
    for (int64_t i = 0; i < count; i++) {
        const double *a = applied + i * apart, *r = recorded + i * apart;
        const double x = along != NULL ? turned(a, along) : *a, y = along != NULL ? turned(r, along) : *r;
        lefts[i % LANES] += (x - factor * y) * (x - factor * y);
    }
    for (int l = 0; l < LANES; l++) total[3] += lefts[l];
    out[0] = factor, out[1] = total[1], out[2] = total[3];
}

/* Of each part of two float64 vectors, from starts[p] to starts[p + 1]: the factor that makes the second one most like
   the first, 1 where there is none; the squares of the first and of what is left. Parts that are to be turned are
   [rows][DIRECTIONS], and what is compared is their products with `along` [DIRECTIONS]. Fills float64 [parts][3]. */
void dualform_compare(const double *applied, const double *recorded, const int64_t *starts, const int64_t *turn,
                      int64_t parts, const double *along, double *out) {
    for (int64_t p = 0; p < parts; p++) {
        const int64_t start = starts[p], count = starts[p + 1] - start;
        if (turn[p])
            compare_part(applied + start, recorded + start, count / DIRECTIONS, along, out + 3 * p);
        else
            compare_part(applied + start, recorded + start, count, NULL, out + 3 * p);
    }
}
