/* The loops that every question about every key runs through. Called from Python without its lock (see __init__.py).

   quantise    float32 keys -> 8-bit codes and what they leave out
   screen      which rows can be among the k best, by the codes alone
   canonical   the reported score of pairs of a key and a query, as query/canonical.py defines it
   project     a matrix along a direction, and rows folded by weights: what the recorder measures at every step

   Rows lie in groups of ROWS, and of each group four dimensions of all its rows lie together: one instruction then
   multiplies four dimensions of sixteen rows, and the sums of sixteen rows come out in one register. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")))
#endif

#define ROWS 16
#define TILE 12 /* queries multiplied together with one register of keys */
#define AHEAD 3 /* keys fetched before their turn: rows lie far apart, and memory answers late */
#define LINE 16 /* float32 numbers of a cache line */
#define INLINE static inline __attribute__((always_inline))

int32_t dualform_abi(void) { return 8; }

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

/* q = scale * code + fine * second code + what `residual` is the norm of. The second codes, where there are any, make
   two columns of a query: the reading of the keys takes longer than twice the products of a few queries. */
typedef struct {
    const int8_t *codes; /* [tiles][words][TILE][4] */
    const float *scale;  /* [count], likewise the next five */
    const float *fine;
    const float *sum;    /* the sum of q's numbers */
    const float *length; /* at least |q| */
    const float *residual;
    const float *slack; /* for |low|: rounding of the sum */
    int64_t count;
    int64_t columns; /* of a query: 1 or 2 */
    int32_t absolute;
} queries_t;

/* What one thread has found: for each query the rows that could be among the k best of their group. */
typedef struct {
    int64_t k, groups, capacity;
    float *best;      /* [count][groups][2 k]: lower bounds, the k greatest so far among them */
    int64_t *held;    /* [count][groups]: how many there are */
    float *floors;    /* [count][groups]: at most the k-th greatest; -infinity while there are fewer */
    int64_t *rows;    /* [count][capacity] */
    float *high;      /* [count][capacity]: upper bounds */
    int64_t *counts;  /* [count] */
    uint8_t *crowded; /* [count]: more rows than capacity, so the query must be asked otherwise */
} found_t;

static const double SLACK = 1.0 / (1 << 20);
/* Scales outside of these could underflow or overflow in a product of two of them. */
static const float SMALLEST = 1e-12f, LARGEST = 1e12f;

/* ---- quantise ---- */

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

static void quantise_plain(const keys_t *to, const float *x, int64_t d, int64_t number, uint8_t *codes) {
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

#ifdef VNNI
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
void dualform_quantise(const keys_t *to, const float *keys, int64_t d, int64_t first, int64_t last, int32_t plain) {
    (void)plain;
    for (int64_t row = first; row < last; row++) {
        uint8_t *codes = to->codes + (row / ROWS) * to->words * ROWS * 4 + (row % ROWS) * 4;
#ifdef VNNI
        if (!plain && dualform_fast()) {
            quantise_vnni(to, keys + row * d, d, row, codes);
            continue;
        }
#endif
        quantise_plain(to, keys + row * d, d, row, codes);
    }
}

/* ---- screen ---- */

/* Move the k greatest of `count` numbers to the front and return the least of them (Hoare's selection). */
static float select_greatest(float *numbers, int64_t count, int64_t k) {
    for (int64_t first = 0, last = count - 1; first < last;) {
        float pivot = numbers[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (numbers[i] > pivot) i++;
            while (numbers[j] < pivot) j--;
            if (i <= j) {
                float other = numbers[i];
                numbers[i++] = numbers[j];
                numbers[j--] = other;
            }
        }
        if (k - 1 <= j)
            last = j;
        else if (k - 1 >= i)
            first = i;
        else
            break;
    }
    float least = numbers[0];
    for (int64_t i = 1; i < k; i++) least = numbers[i] < least ? numbers[i] : least;
    return least;
}

/* Note a lower bound. The floor rises whenever k more have come: often enough, and cheaper than every time. */
static void hold(found_t *found, int64_t cell, float low) {
    const int64_t k = found->k;
    float *best = found->best + cell * 2 * k;
    if (!(low >= found->floors[cell])) return;
    best[found->held[cell]++] = low;
    if (found->held[cell] == 2 * k || (found->held[cell] == k && found->floors[cell] == -INFINITY)) {
        found->floors[cell] = select_greatest(best, found->held[cell], k);
        found->held[cell] = k;
    }
}

/* Forget the rows that the floors have passed. */
static void tidy(found_t *found, const int32_t *group_of, int64_t query) {
    int64_t *rows = found->rows + query * found->capacity, kept = 0;
    float *high = found->high + query * found->capacity, *floors = found->floors + query * found->groups;
    for (int64_t i = 0; i < found->counts[query]; i++) {
        if (high[i] < floors[group_of ? group_of[rows[i]] : 0]) continue;
        rows[kept] = rows[i];
        high[kept++] = high[i];
    }
    found->counts[query] = kept;
}

static void offer(found_t *found, const int32_t *group_of, int64_t query, int64_t row, float low, float high) {
    if (found->crowded[query]) return;
    int64_t cell = query * found->groups + (group_of ? group_of[row] : 0);
    if (high < found->floors[cell]) return; /* the floor rose since the caller looked */
    if (found->counts[query] == found->capacity) {
        tidy(found, group_of, query);
        if (found->counts[query] > found->capacity / 2) found->crowded[query] = 1;
        if (found->crowded[query]) return;
    }
    int64_t at = query * found->capacity + found->counts[query]++;
    found->rows[at] = row;
    found->high[at] = high;
    hold(found, cell, low);
}

/* Rows of `keys` are numbered from the start of the layer; so is `group_of`. */
static const int32_t *group_of_layer(const keys_t *keys) { return keys->group ? keys->group - keys->first : 0; }

INLINE int32_t dot(const uint8_t *key, const int8_t *query, int64_t words) {
    int32_t sum = 0;
    for (int64_t w = 0; w < words; w++)
        for (int i = 0; i < 4; i++) sum += (int32_t)key[w * ROWS * 4 + i] * query[w * TILE * 4 + i];
    return sum;
}

/* The plain form: any processor, and what the fast one is tested against. */
static void screen_plain(const keys_t *keys, const queries_t *queries, found_t *found, int64_t begin, int64_t end) {
    for (int64_t row = begin * ROWS; row < end * ROWS && row < keys->rows; row++) {
        if (keys->group && keys->group[row] < 0) continue;
        const uint8_t *key = keys->codes + (row / ROWS) * keys->words * ROWS * 4 + (row % ROWS) * 4;
        for (int64_t q = 0; q < queries->count; q++) {
            float score = keys->low[row] * queries->sum[q];
            for (int64_t c = 0; c < queries->columns; c++) {
                const int64_t column = q * queries->columns + c;
                const int8_t *query = queries->codes + (column / TILE) * keys->words * TILE * 4 + (column % TILE) * 4;
                score += (float)dot(key, query, keys->words) *
                         (keys->scale[row] * (c ? queries->fine[q] : queries->scale[q]));
            }
            const float error = keys->residual[row] * queries->length[q] + keys->length[row] * queries->residual[q] +
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
#define EACH2(DO) DO(0) DO(1)
#define EACH4(DO) EACH2(DO) DO(2) DO(3)
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
MULTIPLY(multiply_2, EACH2)
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
                       __mmask16 there, const __m512i sums[]) {
    int64_t row = g * ROWS;
    __m512 low = _mm512_loadu_ps(keys->low + row), scale = _mm512_loadu_ps(keys->scale + row);
    __m512 score = _mm512_mul_ps(low, _mm512_set1_ps(queries->sum[q]));
    score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->scale[q])), score);
    if (queries->columns == 2)
        score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->fine[q])), score);
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
    const int64_t stride = keys->words * ROWS * 4, columns = queries->count * queries->columns;
    for (int64_t g = begin; g < end; g += 2) {
        const __mmask16 there[2] = {present(keys, g), g + 1 < end ? present(keys, g + 1) : 0};
        if (!there[0] && !there[1]) continue;
        /* A group without a row to offer is not read. */
        const uint8_t *a = keys->codes + (there[0] ? g : g + 1) * stride, *b = keys->codes + (there[1] ? g + 1 : g) * stride;
        for (int64_t column = 0; column < columns; column += TILE) {
            const int8_t *query = queries->codes + column * keys->words * 4;
            const int64_t own = columns - column < TILE ? columns - column : TILE;
            __m512i sums[2][TILE];
            (own == 1 ? multiply_1 : own == 2 ? multiply_2 : own <= 4 ? multiply_4 : multiply_12)(a, b, query, keys->words, sums);
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; there[i] && j < own; j += queries->columns)
                    judge(keys, queries, found, g + i, (column + j) / queries->columns, there[i], sums[i] + j);
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

/* Once every worker is done: floors over what all of them found, and only the rows that these leave. */
int32_t dualform_settle(found_t *const *workers, int64_t count, int64_t queries, const int32_t *group_of) {
    const int64_t k = workers[0]->k, groups = workers[0]->groups;
    float *all = malloc(sizeof(float) * 2 * k * count);
    if (!all) return 1;
    for (int64_t cell = 0; cell < queries * groups; cell++) {
        int64_t held = 0;
        for (int64_t w = 0; w < count; w++) {
            memcpy(all + held, workers[w]->best + cell * 2 * k, sizeof(float) * workers[w]->held[cell]);
            held += workers[w]->held[cell];
        }
        const float floor = held < k ? -INFINITY : select_greatest(all, held, k);
        for (int64_t w = 0; w < count; w++) workers[w]->floors[cell] = floor;
    }
    free(all);
    for (int64_t w = 0; w < count; w++)
        for (int64_t q = 0; q < queries; q++) tidy(workers[w], group_of, q);
    return 0;
}

/* ---- canonical ---- */

/* `next` is a key that is to come: it is fetched line by line while this one is added up. */
INLINE double canonical_score(const float *key, const float *query, int64_t d, double *terms, const float *next) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (d == 1) return (double)key[0] * query[0] + 0.0;
    /* The products of two float32 are exact, so it does not matter whether they are fused with the sum. */
    const int64_t upper = d - half;
    for (int64_t i = 0; i < half; i += LINE) {
        const int64_t count = half - i < LINE ? half - i : LINE;
        __builtin_prefetch(next + i);
        if (i + LINE <= upper) {
            __builtin_prefetch(next + half + i);
            for (int64_t j = i; j < i + LINE; j++)
                terms[j] = (double)key[j] * query[j] + (double)key[half + j] * query[half + j];
        } else if (i >= upper && count == LINE)
            for (int64_t j = i; j < i + LINE; j++) terms[j] = (double)key[j] * query[j];
        else
            for (int64_t j = i; j < i + count; j++)
                terms[j] = (double)key[j] * query[j] + (j < upper ? (double)key[half + j] * query[half + j] : 0.0);
    }
    for (half /= 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

/* The same for float64 keys. Their products are rounded, and must not be fused with the sum (-ffp-contract=off). */
INLINE double canonical_wide_score(const double *key, const float *query, int64_t d, double *terms) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (d == 1) return key[0] * query[0] + 0.0;
    const int64_t upper = d - half;
    for (int64_t i = 0; i < upper; i++) terms[i] = key[i] * query[i] + key[half + i] * query[half + i];
    for (int64_t i = upper; i < half; i++) terms[i] = key[i] * query[i];
    for (half /= 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

INLINE void canonical_pairs(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                            int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++)
        scores[p] = canonical_score(keys[p], queries + query[p] * d, d, terms, keys[p + AHEAD < pairs ? p + AHEAD : p]);
}

#ifdef VNNI
/* Eight products from i on, zeros past the end. */
VNNI INLINE __m512d products(const float *key, const float *query, int64_t i, int64_t d) {
    const __mmask8 there = d - i >= 8 ? 0xFF : d > i ? (__mmask8)((1 << (d - i)) - 1) : 0;
    return _mm512_mul_pd(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, key + i)),
                         _mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, query + i)));
}

/* Those from i on and those half the tree further; on the way, `next` is fetched. */
VNNI INLINE __m512d leaf(const float *key, const float *query, int64_t i, int64_t half, int64_t d, const float *next) {
    __builtin_prefetch(next + i);
    const __m512d sum = products(key, query, i, d);
    if (i + half >= d) return sum;
    __builtin_prefetch(next + half + i);
    return _mm512_add_pd(sum, products(key, query, i + half, d));
}

/* The same tree. Its first four levels are added in registers: one pass over the products instead of four. */
VNNI static double canonical_wide_tree(const float *key, const float *query, int64_t d, double *terms,
                                       const float *next) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (half < 64) return canonical_score(key, query, d, terms, next);
    const int64_t part = half / 8;
#define LEAF(j) leaf(key, query, i + (j) * part, half, d, next)
#define PAIR(j) _mm512_add_pd(LEAF(j), LEAF((j) + 4))
#define FOUR(j) _mm512_add_pd(PAIR(j), PAIR((j) + 2))
    for (int64_t i = 0; i < part; i += 8) _mm512_storeu_pd(terms + i, _mm512_add_pd(FOUR(0), FOUR(1)));
    for (half = part / 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

VNNI static void canonical_wide(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                                int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++)
        scores[p] = canonical_wide_tree(keys[p], queries + query[p] * d, d, terms,
                                        keys[p + AHEAD < pairs ? p + AHEAD : p]);
}

VNNI static void canonical_rows_wide(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                                     double *scores) {
    for (int64_t r = 0; r < rows; r++) scores[r] = canonical_wide_score(keys + r * d, query, d, terms);
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

/* Scores of float64 keys [rows][d] with one query; `terms` likewise. d > 0. */
void dualform_canonical_rows(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                             double *scores) {
#ifdef VNNI
    if (dualform_fast()) {
        canonical_rows_wide(keys, rows, query, d, terms, scores);
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) scores[r] = canonical_wide_score(keys + r * d, query, d, terms);
}

/* ---- project ---- */

static void project_plain(const float *matrix, int64_t rows, int64_t columns, const float *direction, double *out) {
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < columns; c++) sum += (double)matrix[r * columns + c] * direction[c];
        out[r] = sum;
    }
}

INLINE void fold_rows(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *weighted,
                      double *summed, double *squares) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * columns;
        const double weight = weights[r];
        for (int64_t c = 0; c < columns; c++) {
            const double x = row[c];
            weighted[c] += weight * x;
            summed[c] += x;
            squares[c] += x * x;
        }
    }
}

#ifdef VNNI
VNNI static void project_wide(const float *matrix, int64_t rows, int64_t columns, const float *direction, double *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * columns;
        __m512d sums[4];
        for (int i = 0; i < 4; i++) sums[i] = _mm512_setzero_pd();
        int64_t c = 0;
        for (; c + 32 <= columns; c += 32)
            for (int i = 0; i < 4; i++)
                sums[i] = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(row + c + 8 * i)),
                                          _mm512_cvtps_pd(_mm256_loadu_ps(direction + c + 8 * i)), sums[i]);
        double sum = _mm512_reduce_add_pd(
            _mm512_add_pd(_mm512_add_pd(sums[0], sums[1]), _mm512_add_pd(sums[2], sums[3])));
        for (; c < columns; c++) sum += (double)row[c] * direction[c];
        out[r] = sum;
    }
}

VNNI static void fold_wide(const float *matrix, int64_t rows, int64_t columns, const double *weights,
                           double *weighted, double *summed, double *squares) {
    fold_rows(matrix, rows, columns, weights, weighted, summed, squares);
}
#endif

/* Each row of float32 [rows][columns] times a direction, summed in float64. */
void dualform_project(const float *matrix, int64_t rows, int64_t columns, const float *direction, double *out) {
#ifdef VNNI
    if (dualform_fast()) {
        project_wide(matrix, rows, columns, direction, out);
        return;
    }
#endif
    project_plain(matrix, rows, columns, direction, out);
}

/* Adds, column by column, the rows times their weights, the rows, and their squares. */
void dualform_fold(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *weighted,
                   double *summed, double *squares) {
#ifdef VNNI
    if (dualform_fast()) {
        fold_wide(matrix, rows, columns, weights, weighted, summed, squares);
        return;
    }
#endif
    fold_rows(matrix, rows, columns, weights, weighted, summed, squares);
}
