/* Distances of vectors part by part: how far the recorder's weights are from what the record makes of them. */

#include "kernels.h"

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
