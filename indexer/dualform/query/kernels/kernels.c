/* The loops that every question about every key runs through. Called from Python without its lock (see __init__.py).

   quantise    float32 keys -> 8-bit codes and what they leave out
   screen      which rows can be among the k best, by the codes alone
   canonical   the reported score of pairs of a key and a query, as canonical.py defines it

   Rows lie in groups of ROWS, and of each group four dimensions of all its rows lie together: one instruction then
   multiplies four dimensions of sixteen rows, and the sums of sixteen rows come out in one register. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#endif

#define ROWS 16
#define TILE 12 /* queries multiplied together with one register of keys */
#define INLINE static inline __attribute__((always_inline))

int32_t dualform_abi(void) { return 1; }

int32_t dualform_tile(void) { return TILE; }

/* Whether this processor has the instructions that make the screen faster than a float32 product. */
int32_t dualform_fast(void) {
#ifdef VNNI
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
    return 0;
#endif
}

/* A segment's keys in eight bits: x = scale * code + low + what `residual` is the norm of. */
typedef struct {
    uint8_t *codes;  /* [groups][words][ROWS][4] */
    float *scale;    /* [groups * ROWS], likewise the next three */
    float *low;
    float *residual; /* at least |x - scale * code - low| */
    float *length;   /* at least |scale * code| */
    const int32_t *group; /* [rows]: the group of each row, -1 for a row that the mask leaves out; NULL: all 0 */
    int64_t rows;
    int64_t words; /* ceil(d / 4) */
    int64_t first; /* number of the segment's first row in the layer */
} keys_t;

/* q = scale * code + what `residual` is the norm of. */
typedef struct {
    const int8_t *codes; /* [tiles][words][TILE][4] */
    const float *scale;  /* [count], likewise the next four */
    const float *sum;    /* the sum of q's numbers */
    const float *length; /* at least |q| */
    const float *residual;
    const float *slack; /* for |low|: rounding of the sum */
    int64_t count;
    int32_t absolute;
} queries_t;

/* What one thread has found: for each query the rows that could be among the k best of their group. */
typedef struct {
    int64_t k, groups, capacity;
    float *best;      /* [count][groups][k]: heaps of the k greatest lower bounds, the least on top */
    int64_t *held;    /* [count][groups]: how many a heap holds */
    float *floors;    /* [count][groups]: the least of a full heap, else -infinity */
    int64_t *rows;    /* [count][capacity] */
    float *high;      /* [count][capacity]: upper bounds */
    int64_t *counts;  /* [count] */
    uint8_t *crowded; /* [count]: more rows than capacity, so the query must be asked otherwise */
} found_t;

static const double SLACK = 1.0 / (1 << 20);
/* Scales outside of these could underflow or overflow in a product of two of them. */
static const float SMALLEST = 1e-12f, LARGEST = 1e12f;

/* ---- quantise ---- */

INLINE void quantise_row(const float *x, int64_t d, uint8_t *codes, float *scale, float *low, float *residual,
                         float *length, double *norm) {
    float least = x[0], most = x[0];
    double squares = 0.0;
    for (int64_t i = 0; i < d; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        squares += (double)x[i] * x[i];
    }
    *norm = sqrt(squares);
    *scale = *low = *length = 0.0f;
    double span = (double)most - least, greatest = fmax(fabs((double)most), fabs((double)least));
    if (!isfinite(squares) || (greatest > 0 && (greatest < SMALLEST || greatest > LARGEST))) {
        *residual = isfinite(squares) ? (float)fmax(*norm * (1 + SLACK), 1e-20) : INFINITY;
        return;
    }
    float step = (float)(span / 255);
    if (step < SMALLEST) step = 0.0f;
    float lowest = fabsf(least) < SMALLEST ? 0.0f : least;
    float per = step > 0 ? 1.0f / step : 0.0f;
    double left = 0.0, coded = 0.0;
    for (int64_t i = 0; i < d; i++) {
        float place = (x[i] - lowest) * per;
        int32_t code = (int32_t)(place + 0.5f);
        code = code < 0 ? 0 : code > 255 ? 255 : code;
        codes[(i >> 2) * ROWS * 4 + (i & 3)] = (uint8_t)code;
        double part = (double)step * code, off = x[i] - part - lowest;
        left += off * off;
        coded += part * part;
    }
    *scale = step;
    *low = lowest;
    *residual = (float)((sqrt(left) + *norm * 0x1p-40) * (1 + SLACK));
    *length = (float)(sqrt(coded) * (1 + SLACK));
}

static void quantise_rows(const keys_t *to, const float *keys, int64_t d, int64_t first, int64_t last, double *norms) {
    for (int64_t row = first; row < last; row++) {
        uint8_t *codes = to->codes + (row / ROWS) * to->words * ROWS * 4 + (row % ROWS) * 4;
        quantise_row(keys + row * d, d, codes, to->scale + row, to->low + row, to->residual + row, to->length + row,
                     norms + row);
    }
}

#ifdef VNNI
VNNI static void quantise_rows_vnni(const keys_t *to, const float *keys, int64_t d, int64_t first, int64_t last,
                                    double *norms) {
    for (int64_t row = first; row < last; row++) {
        uint8_t *codes = to->codes + (row / ROWS) * to->words * ROWS * 4 + (row % ROWS) * 4;
        quantise_row(keys + row * d, d, codes, to->scale + row, to->low + row, to->residual + row, to->length + row,
                     norms + row);
    }
}
#endif

/* Rows first to last of float32 keys [rows][d] into a zeroed `to`; norms [rows]. d > 0. */
void dualform_quantise(const keys_t *to, const float *keys, int64_t d, int64_t first, int64_t last, double *norms) {
#ifdef VNNI
    if (dualform_fast()) {
        quantise_rows_vnni(to, keys, d, first, last, norms);
        return;
    }
#endif
    quantise_rows(to, keys, d, first, last, norms);
}

/* ---- screen ---- */

/* Put a lower bound in a heap where it belongs there; the floor is the least of a full heap. */
static void hold(found_t *found, int64_t cell, float low) {
    int64_t k = found->k, held = found->held[cell], at;
    float *heap = found->best + cell * k;
    if (held < k) {
        at = found->held[cell]++;
        while (at > 0 && heap[(at - 1) / 2] > low) {
            heap[at] = heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        heap[at] = low;
        if (held + 1 == k) found->floors[cell] = heap[0];
        return;
    }
    if (!(low > heap[0])) return;
    for (at = 0;;) {
        int64_t child = 2 * at + 1;
        if (child >= k) break;
        if (child + 1 < k && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= low) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = low;
    found->floors[cell] = heap[0];
}

/* Forget the rows that the floors have passed; a query that still has too many is crowded. */
static void tidy(found_t *found, const int32_t *group_of, int64_t query) {
    int64_t *rows = found->rows + query * found->capacity, kept = 0;
    float *high = found->high + query * found->capacity, *floors = found->floors + query * found->groups;
    for (int64_t i = 0; i < found->counts[query]; i++) {
        if (high[i] < floors[group_of ? group_of[rows[i]] : 0]) continue;
        rows[kept] = rows[i];
        high[kept++] = high[i];
    }
    found->counts[query] = kept;
    if (kept > found->capacity / 2) found->crowded[query] = 1;
}

static void offer(found_t *found, const int32_t *group_of, int64_t query, int64_t row, float low, float high) {
    if (found->crowded[query]) return;
    int64_t cell = query * found->groups + (group_of ? group_of[row] : 0);
    if (high < found->floors[cell]) return; /* the floor rose since the caller looked */
    if (found->counts[query] == found->capacity) {
        tidy(found, group_of, query);
        if (found->crowded[query]) return;
    }
    int64_t at = query * found->capacity + found->counts[query]++;
    found->rows[at] = row;
    found->high[at] = high;
    hold(found, cell, low);
}

/* Rows of `keys` are numbered from the start of the layer; so is `group_of`. */
static const int32_t *group_of_layer(const keys_t *keys) { return keys->group ? keys->group - keys->first : 0; }

/* The plain form: any processor, and what the fast one is tested against. */
static void screen_plain(const keys_t *keys, const queries_t *queries, found_t *found, int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++)
        for (int64_t q = 0; q < queries->count; q++) {
            const uint8_t *key = keys->codes + g * keys->words * ROWS * 4;
            const int8_t *query = queries->codes + (q / TILE) * keys->words * TILE * 4 + (q % TILE) * 4;
            int32_t dots[ROWS] = {0};
            for (int64_t w = 0; w < keys->words; w++, key += ROWS * 4, query += TILE * 4)
                for (int r = 0; r < ROWS; r++)
                    for (int i = 0; i < 4; i++) dots[r] += (int32_t)key[4 * r + i] * query[i];
            for (int64_t r = 0, row = g * ROWS; r < ROWS && row < keys->rows; r++, row++) {
                if (keys->group && keys->group[row] < 0) continue;
                float score = (float)dots[r] * (keys->scale[row] * queries->scale[q]) + keys->low[row] * queries->sum[q];
                float error = keys->residual[row] * queries->length[q] + keys->length[row] * queries->residual[q] +
                              fabsf(keys->low[row]) * queries->slack[q];
                if (queries->absolute) score = fabsf(score);
                offer(found, group_of_layer(keys), q, keys->first + row, score - error, score + error);
            }
        }
}

#ifdef VNNI

/* Products of two groups of rows with the first queries of a tile, summed over all words. The sums have names of their
   own rather than an array, which the compiler would keep in memory. */
#define EACH1(DO) DO(0)
#define EACH4(DO) DO(0) DO(1) DO(2) DO(3)
#define EACH12(DO) EACH4(DO) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define BEGIN(q) __m512i a##q = _mm512_setzero_si512(), b##q = _mm512_setzero_si512();
#define STEP(q)                                        \
    memcpy(&four, query + (w * TILE + q) * 4, 4);      \
    own = _mm512_set1_epi32(four);                     \
    a##q = _mm512_dpbusd_epi32(a##q, left, own);       \
    b##q = _mm512_dpbusd_epi32(b##q, right, own);
#define END(q) sums[0][q] = a##q, sums[1][q] = b##q;
#define MULTIPLY(NAME, EACH)                                                                                 \
    VNNI static void NAME(const uint8_t *a, const uint8_t *b, const int8_t *query, int64_t words,            \
                          __m512i sums[2][TILE]) {                                                           \
        int32_t four;                                                                                        \
        __m512i own, left, right;                                                                            \
        EACH(BEGIN)                                                                                          \
        for (int64_t w = 0; w < words; w++) {                                                                \
            left = _mm512_loadu_si512(a + w * ROWS * 4);                                                     \
            right = _mm512_loadu_si512(b + w * ROWS * 4);                                                    \
            EACH(STEP)                                                                                       \
        }                                                                                                    \
        EACH(END)                                                                                            \
    }
MULTIPLY(multiply_1, EACH1)
MULTIPLY(multiply_4, EACH4)
MULTIPLY(multiply_12, EACH12)

/* Which of a group's rows count: those that there are, and that the mask leaves. */
VNNI INLINE __mmask16 present(const keys_t *keys, int64_t g) {
    int64_t left = keys->rows - g * ROWS;
    __mmask16 there = left >= ROWS ? 0xFFFF : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
    if (keys->group && there)
        there = _mm512_mask_cmpge_epi32_mask(there, _mm512_maskz_loadu_epi32(there, keys->group + g * ROWS),
                                             _mm512_setzero_si512());
    return there;
}

VNNI INLINE void judge(const keys_t *keys, const queries_t *queries, found_t *found, int64_t g, int64_t q,
                       __mmask16 there, __m512i sums) {
    int64_t row = g * ROWS;
    __m512 low = _mm512_loadu_ps(keys->low + row);
    __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(keys->scale + row), _mm512_set1_ps(queries->scale[q]));
    __m512 score = _mm512_fmadd_ps(low, _mm512_set1_ps(queries->sum[q]), _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale));
    __m512 error = _mm512_mul_ps(_mm512_loadu_ps(keys->residual + row), _mm512_set1_ps(queries->length[q]));
    error = _mm512_fmadd_ps(_mm512_loadu_ps(keys->length + row), _mm512_set1_ps(queries->residual[q]), error);
    error = _mm512_fmadd_ps(_mm512_abs_ps(low), _mm512_set1_ps(queries->slack[q]), error);
    if (queries->absolute) score = _mm512_abs_ps(score);
    __m512 high = _mm512_add_ps(score, error), floor;
    if (found->groups == 1)
        floor = _mm512_set1_ps(found->floors[q]);
    else
        floor = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there,
                                         _mm512_maskz_loadu_epi32(there, keys->group + row),
                                         found->floors + q * found->groups, 4);
    /* Not less: what is not a number goes on to where it is scored exactly. */
    __mmask16 reach = _mm512_mask_cmp_ps_mask(there, high, floor, _CMP_NLT_UQ);
    if (!reach) return;
    float highs[ROWS], lows[ROWS];
    _mm512_storeu_ps(highs, high);
    _mm512_storeu_ps(lows, _mm512_sub_ps(score, error));
    for (; reach; reach &= reach - 1) {
        int r = __builtin_ctz(reach);
        offer(found, group_of_layer(keys), q, keys->first + row + r, lows[r], highs[r]);
    }
}

VNNI static void screen_vnni(const keys_t *keys, const queries_t *queries, found_t *found, int64_t begin, int64_t end) {
    const int64_t stride = keys->words * ROWS * 4;
    for (int64_t g = begin; g < end; g += 2) {
        const __mmask16 there[2] = {present(keys, g), g + 1 < end ? present(keys, g + 1) : 0};
        if (!there[0] && !there[1]) continue;
        /* A group without a row to offer is not read. */
        const uint8_t *a = keys->codes + (there[0] ? g : g + 1) * stride, *b = keys->codes + (there[1] ? g + 1 : g) * stride;
        for (int64_t q = 0; q < queries->count; q += TILE) {
            const int8_t *query = queries->codes + q * keys->words * 4;
            const int64_t own = queries->count - q < TILE ? queries->count - q : TILE;
            __m512i sums[2][TILE];
            (own == 1 ? multiply_1 : own <= 4 ? multiply_4 : multiply_12)(a, b, query, keys->words, sums);
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; there[i] && j < own; j++) judge(keys, queries, found, g + i, q + j, there[i], sums[i][j]);
        }
    }
}
#endif

/* Groups of rows begin to end of a segment. `plain` leaves the fast instructions aside. */
void dualform_screen(const keys_t *keys, const queries_t *queries, found_t *found, int64_t begin, int64_t end,
                     int32_t plain) {
#ifdef VNNI
    if (!plain && dualform_fast()) {
        screen_vnni(keys, queries, found, begin, end);
        return;
    }
#endif
    screen_plain(keys, queries, found, begin, end);
}

/* ---- canonical ---- */

INLINE double canonical_score(const float *key, const float *query, int64_t d, double *terms) {
    int64_t width = d, half = 1;
    while (half * 2 < width) half *= 2;
    if (width == 1) return (double)key[0] * query[0] + 0.0;
    /* The products of two float32 are exact, so it does not matter whether they are fused with the sum. */
    for (int64_t i = 0; i < width - half; i++)
        terms[i] = (double)key[i] * query[i] + (double)key[half + i] * query[half + i];
    for (int64_t i = width - half; i < half; i++) terms[i] = (double)key[i] * query[i];
    for (half /= 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

INLINE void canonical_pairs(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                            int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++) {
        if (p + 2 < pairs)
            for (int64_t i = 0; i < d; i += 16) __builtin_prefetch(keys[p + 2] + i);
        scores[p] = canonical_score(keys[p], queries + query[p] * d, d, terms);
    }
}

#ifdef VNNI
VNNI static void canonical_wide(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                                int64_t d, double *terms, double *scores) {
    canonical_pairs(keys, query, queries, pairs, d, terms, scores);
}
#endif

/* Scores of pairs: keys[p] with queries[query[p]]. `terms` is scratch for 2^ceil(log2 d) numbers. d > 0. */
void dualform_canonical(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs, int64_t d,
                        double *terms, double *scores) {
#ifdef VNNI
    if (dualform_fast()) {
        canonical_wide(keys, query, queries, pairs, d, terms, scores);
        return;
    }
#endif
    canonical_pairs(keys, query, queries, pairs, d, terms, scores);
}
