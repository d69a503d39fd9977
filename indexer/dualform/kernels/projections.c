/* Matrices along directions: the sums that the recorder takes of weights, gradients and slots at every step of a training.

   Each takes one pass over its matrix: float32 numbers are widened once, and all sums are float64. Products are fused with
   these sums, by every form alike. */

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
