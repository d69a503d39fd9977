/* Keys in eight bits: see query/search/codes.py. And what Python asks of the library as a whole. */

#include "kernels.h"

#include <math.h>
#include <string.h>

int32_t dualform_abi(void) { return 23; }

int32_t dualform_tile(void) { return TILE; }

int32_t dualform_best_form(void) {
#ifdef X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return PORTABLE_FORM;
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vnni");
    return wide ? VNNI_FORM : AVX2_FORM;
#else
    return PORTABLE_FORM;
#endif
}

static int32_t form = PORTABLE_FORM;

int32_t dualform_form(void) { return form; }

/* Before any loop is called, or between calls. */
void dualform_use(int32_t wanted) { form = wanted < dualform_best_form() ? wanted : dualform_best_form(); }

/* The greatest code of a query. Two products of codes must fit the 16 bits in which AVX2 adds them: 2 * 255 * 63. */
int32_t dualform_greatest(void) { return form == AVX2_FORM ? 63 : 127; }

static const double SLACK = 1.0 / (1 << 20);
/* Scales outside of these could underflow or overflow in a product of two of them. */
static const float SMALLEST = 1e-12f, LARGEST = 1e12f;

/* What the coding of a row needs to know, and what is summed on the way. */
typedef struct {
    float least, most, step, per, lowest;
    double squares, left, coded;
} row_t;

/* From the row's range to its step; 0 where it gets no codes, but a residual that covers all of it. */
static int plan_row(row_t *row, const keys_t *to, int64_t number) {
    const double greatest = fmax(fabs((double)row->most), fabs((double)row->least));
    if (!isfinite(row->squares) || (greatest > 0 && (greatest < SMALLEST || greatest > LARGEST))) {
        to->residual[number] = isfinite(row->squares) ? (float)fmax(sqrt(row->squares) * (1 + SLACK), 1e-20) : INFINITY;
        return 0;
    }
    row->step = (float)(((double)row->most - row->least) / 255);
    if (row->step < SMALLEST) row->step = 0.0f;
    row->per = row->step > 0 ? 1.0f / row->step : 0.0f;
    row->lowest = fabsf(row->least) < SMALLEST ? 0.0f : row->least;
    return 1;
}

static void finish_row(const row_t *row, const keys_t *to, int64_t number) {
    to->scale[number] = row->step;
    to->low[number] = row->lowest;
    to->residual[number] = (float)((sqrt(row->left) + sqrt(row->squares) * 0x1p-40) * (1 + SLACK));
    to->length[number] = (float)(sqrt(row->coded) * (1 + SLACK));
}

INLINE void quantise(const keys_t *to, const float *x, int64_t d, int64_t number, uint8_t *codes) {
    row_t row = {.least = x[0], .most = x[0]};
    for (int64_t i = 0; i < d; i++) {
        row.least = x[i] < row.least ? x[i] : row.least;
        row.most = x[i] > row.most ? x[i] : row.most;
        row.squares += (double)x[i] * x[i];
    }
    if (!plan_row(&row, to, number)) return;
    for (int64_t i = 0; i < d; i++) {
        const float place = (x[i] - row.lowest) * row.per + 0.5f;
        const int32_t code = (int32_t)(place < 255.0f ? place : 255.0f);
        const double part = (double)row.step * code, off = x[i] - part - row.lowest;
        row.left += off * off;
        row.coded += part * part;
        codes[(i >> 2) * ROWS * 4 + (i & 3)] = (uint8_t)code;
    }
    finish_row(&row, to, number);
}

NARROW_FORMS(quantise, (const keys_t *to, const float *x, int64_t d, int64_t number, uint8_t *codes),
             (to, x, d, number, codes))

#ifdef X86
VNNI static void quantise_vnni(const keys_t *to, const float *x, int64_t d, int64_t number, uint8_t *codes) {
    row_t row;
    __m512 least = _mm512_set1_ps(x[0]), most = least;
    __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()}, left[2], coded[2];
    left[0] = left[1] = coded[0] = coded[1] = squares[0];
#define TAIL(i) (d - (i) >= 16 ? 0xFFFF : (__mmask16)((1 << (d - (i))) - 1))
#define HALF(v, h) _mm512_cvtps_pd((h) ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v))
    for (int64_t i = 0; i < d; i += 16) {
        const __mmask16 there = TAIL(i);
        const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
        least = _mm512_mask_min_ps(least, there, least, v);
        most = _mm512_mask_max_ps(most, there, most, v);
        for (int h = 0; h < 2; h++) squares[h] = _mm512_fmadd_pd(HALF(v, h), HALF(v, h), squares[h]);
    }
    row.least = _mm512_reduce_min_ps(least);
    row.most = _mm512_reduce_max_ps(most);
    row.squares = _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1]));
    if (!plan_row(&row, to, number)) return;
    const __m512d step = _mm512_set1_pd(row.step), lowest = _mm512_set1_pd(row.lowest);
    for (int64_t i = 0; i < d; i += 16) {
        const __mmask16 there = TAIL(i);
        /* Past the end stands the lowest number, whose code is 0 and leaves nothing out. */
        const __m512 v = _mm512_mask_loadu_ps(_mm512_set1_ps(row.lowest), there, x + i);
        const __m512 place = _mm512_mul_ps(_mm512_sub_ps(v, _mm512_set1_ps(row.lowest)), _mm512_set1_ps(row.per));
        const __m512i near = _mm512_cvtps_epi32(place), zero = _mm512_setzero_si512();
        const __m512i code = _mm512_max_epi32(_mm512_min_epi32(near, _mm512_set1_epi32(255)), zero);
        for (int h = 0; h < 2; h++) {
            const __m512d own = _mm512_cvtepi32_pd(h ? _mm512_extracti32x8_epi32(code, 1) : _mm512_castsi512_si256(code));
            const __m512d part = _mm512_mul_pd(own, step);
            const __m512d off = _mm512_sub_pd(_mm512_sub_pd(HALF(v, h), part), lowest);
            left[h] = _mm512_fmadd_pd(off, off, left[h]);
            coded[h] = _mm512_fmadd_pd(part, part, coded[h]);
        }
        uint32_t words[4];
        _mm_storeu_si128((__m128i *)words, _mm512_cvtepi32_epi8(code));
        for (int w = 0; w < 4 && i + 4 * w < d; w++) memcpy(codes + ((i >> 2) + w) * ROWS * 4, words + w, 4);
    }
    row.left = _mm512_reduce_add_pd(_mm512_add_pd(left[0], left[1]));
    row.coded = _mm512_reduce_add_pd(_mm512_add_pd(coded[0], coded[1]));
    finish_row(&row, to, number);
}
#endif

/* Rows first to last of float32 keys [rows][d] into a zeroed `to`. d > 0. */
void dualform_quantise(const keys_t *to, const float *keys, int64_t d, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        uint8_t *codes = to->codes + (row / ROWS) * to->words * ROWS * 4 + (row % ROWS) * 4;
        CALL(quantise, to, keys + row * d, d, row, codes);
    }
}
