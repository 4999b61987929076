package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Token is a token's account over all its resources and time.
type Token struct {
	ID       token.ID
	Ops      int64 // admitted units
	Rejected int64 // units
	Refunded int64 // units
	First    int64 // unix seconds: begin of the first minute with an admission; 0: none
	Last     int64 // unix seconds of the last admission; 0: none
}

// Errors that callers tell apart; they are wrapped with what was wrong.
var (
	ErrUnknownToken = errors.New("unknown token")
	ErrSpan         = errors.New("invalid span")
	ErrSort         = query.ErrSort
	ErrCursor       = query.ErrCursor
)

// Sort is an order of tokens; the zero value is the highest ops first.
type Sort = query.Sort

// ParseSort parses ops, rejected, refunded, first, last or token, with a minus
// sign before it for the highest first. The error wraps ErrSort.
func ParseSort(s string) (Sort, error) {
	sort, err := query.ParseSort(s)
	if err != nil {
		return Sort{}, err
	}
	if columns[sort.Field] == "" {
		return Sort{}, fmt.Errorf("%w: the history does not know the %s; sort by ops, rejected, refunded, first, last or token", ErrSort, sort.Field)
	}
	return sort, nil
}

// Page asks for tokens from where another page ended.
type Page struct {
	Sort  Sort
	Limit int // tokens at most; 1 to MaxPage
	// After is the cursor that came with the page before; "" is the beginning. A
	// token that moves in the order while pages are read may be met twice or not
	// at all; all others are met once.
	After string
}

// MaxPage is the largest page.
const MaxPage = query.MaxLimit

// Tokens returns a page of tokens and the cursor of the next, "" after the last.
func (s *Store) Tokens(ctx context.Context, page Page) ([]Token, string, error) {
	found, err := s.Search(ctx, query.Query{Sort: page.Sort, Limit: page.Limit, After: page.After}, time.Time{})
	if err != nil {
		return nil, "", err
	}
	tokens := make([]Token, len(found.Rows))
	for i, r := range found.Rows {
		tokens[i] = Token{ID: r.Token, Ops: r.Ops, Rejected: r.Rejected, Refunded: r.Refunded, First: r.First, Last: r.Last}
	}
	return tokens, found.Next, nil
}

const tokenColumns = "token, ops, rejected, refunded, first_use, last_use"

func scanToken(rows *sql.Rows) (Token, error) {
	var t Token
	err := rows.Scan(&t.ID, &t.Ops, &t.Rejected, &t.Refunded, &t.First, &t.Last)
	return t, err
}

// collect reads all rows and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// Token returns one token's account. The error wraps ErrUnknownToken when the
// history has never heard of it.
func (s *Store) Token(ctx context.Context, id token.ID) (Token, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE token = $1", string(id))
	if err != nil {
		return Token{}, fmt.Errorf("history: read a token: %w", err)
	}
	tokens, err := collect(rows, scanToken)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("history: read a token: %w", err)
	case len(tokens) == 0:
		return Token{}, fmt.Errorf("%w: the history holds no usage of it (yet)", ErrUnknownToken)
	}
	return tokens[0], nil
}

// Span is a stretch of time cut into steps. Steps lie on multiples of their
// length since the epoch (a step of a day begins at midnight UTC) and are counted
// whole, so the first begins at or before From and the last ends at or after To.
type Span struct {
	From, To time.Time     // half-open
	Step     time.Duration // whole minutes
}

// MaxPoints is the largest number of steps in a span.
const MaxPoints = 10_000

// minutes returns the span in epoch minutes: the begin of the first step, the end
// of the last and the length of a step.
func (s Span) minutes() (from, to, step int64, err error) {
	if from, to, step, err = s.bounds(); err != nil {
		return 0, 0, 0, err
	}
	if points := (to - from) / step; points > MaxPoints {
		return 0, 0, 0, fmt.Errorf("%w: it has %d steps, at most %d are allowed; take a longer step", ErrSpan, points, MaxPoints)
	}
	return from, to, step, nil
}

func (s Span) bounds() (from, to, step int64, err error) {
	switch {
	case s.Step < time.Minute || s.Step%time.Minute != 0:
		return 0, 0, 0, fmt.Errorf("%w: the step is %s, but must be whole minutes", ErrSpan, s.Step)
	case !s.From.Before(s.To):
		return 0, 0, 0, fmt.Errorf("%w: from must be before to", ErrSpan)
	case s.From.Unix() < 0:
		return 0, 0, 0, fmt.Errorf("%w: from is before 1970", ErrSpan)
	case s.To.Unix() > maxTime:
		return 0, 0, 0, fmt.Errorf("%w: to is after the year 9999", ErrSpan)
	}
	step = int64(s.Step / time.Minute)
	from = s.From.Unix() / 60 / step * step
	to = (s.To.Add(time.Second-1).Unix() + step*60 - 1) / 60 / step * step
	return from, to, step, nil
}

// maxTime is the end of the year 9999, unix seconds.
const maxTime = 253402300800

// Point is what was used in one step.
type Point struct {
	Start time.Time // UTC
	usage.Totals
}

// Usage returns a token's usage, one point per step of the span, also for steps
// without any. With resources only those count, otherwise all. A token that
// nobody knows has used nothing. The error wraps ErrSpan when the span is wrong.
func (s *Store) Usage(ctx context.Context, id token.ID, span Span, resources ...string) ([]Point, error) {
	from, to, step, err := span.minutes()
	if err != nil {
		return nil, err
	}
	args := []any{string(id)}
	where := "token = $1" + in("resource", resources, &args)
	points, err := s.points(ctx, from, to, step, args, func(v *view, grain int64) (string, error) {
		return v.rows(from, to, grain, nil, where)
	})
	if err != nil {
		return nil, fmt.Errorf("history: read usage: %w", err)
	}
	return points, nil
}

// TotalUsage is Usage for all tokens together.
func (s *Store) TotalUsage(ctx context.Context, span Span, resources ...string) ([]Point, error) {
	from, to, step, err := span.minutes()
	if err != nil {
		return nil, err
	}
	var args []any
	where := "true" + in("resource", resources, &args)
	points, err := s.points(ctx, from, to, step, args, func(v *view, grain int64) (string, error) {
		return v.totalRows(from, to, grain, where)
	})
	if err != nil {
		return nil, fmt.Errorf("history: read total usage: %w", err)
	}
	return points, nil
}

// points sums up the rows of a view per step.
func (s *Store) points(ctx context.Context, from, to, step int64, args []any, rows func(v *view, grain int64) (string, error)) ([]Point, error) {
	points := make([]Point, (to-from)/step)
	for i := range points {
		points[i].Start = time.Unix((from+int64(i)*step)*60, 0).UTC()
	}
	err := s.look(ctx, func(v *view) error {
		source, err := rows(v, grainOf(step))
		if err != nil {
			return err
		}
		rows, err := v.tx.QueryContext(ctx, fmt.Sprintf(`SELECT minute / %d AS step, `+sums+` FROM %s r GROUP BY 1`, step, source), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var n int64
			var t usage.Totals
			if err := rows.Scan(&n, &t.Admitted, &t.Rejected, &t.Refunded, &t.Last); err != nil {
				return err
			}
			points[n-from/step].Totals = t
		}
		return rows.Err()
	})
	return points, err
}

// sums are the columns of usage.Totals over several rows. Postgres sums bigints up
// to a numeric, hence the casts; both databases understand them.
const sums = `CAST(sum(admitted) AS bigint), CAST(sum(rejected) AS bigint), CAST(sum(refunded) AS bigint), max(last_use)`

// grainOf returns the coarsest table from which steps of that length can be made.
func grainOf(step int64) int64 {
	switch {
	case step%perDay == 0:
		return perDay
	case step%perHour == 0:
		return perHour
	}
	return perMinute
}

// in returns the condition that column is one of values, to be appended to
// another, with its arguments appended to args; none means any.
func in(column string, values []string, args *[]any) string {
	if len(values) == 0 {
		return ""
	}
	marks := make([]string, len(values))
	for i, v := range values {
		*args = append(*args, v)
		marks[i] = fmt.Sprintf("$%d", len(*args))
	}
	return " AND " + column + " IN (" + strings.Join(marks, ", ") + ")"
}

// Top returns the tokens with the highest usage between two times (whole minutes,
// half-open), at most limit of them. They are sorted as sort says, but by what
// they used in that time, and so are the accounts: First and Last are the first
// and last use in it, First as exactly as the rows tell (a minute, hour or day).
func (s *Store) Top(ctx context.Context, from, to time.Time, sort Sort, limit int, resources ...string) ([]Token, error) {
	first, end, _, err := Span{from, to, time.Minute}.bounds()
	if err != nil {
		return nil, err
	}
	var args []any
	where := "true" + in("resource", resources, &args)
	column, direction, _, err := order(sort)
	if err != nil {
		return nil, err
	}
	var top []Token
	err = s.look(ctx, func(v *view) error {
		source, err := v.rows(first, end, perDay, []string{"token"}, where)
		if err != nil {
			return err
		}
		rows, err := v.tx.QueryContext(ctx, fmt.Sprintf(`SELECT `+tokenColumns+` FROM (
			SELECT token, CAST(sum(admitted) AS bigint) AS ops, CAST(sum(rejected) AS bigint) AS rejected,
				CAST(sum(refunded) AS bigint) AS refunded,
				coalesce(min(CASE WHEN admitted > 0 THEN minute * 60 END), 0) AS first_use, max(last_use) AS last_use
			FROM %s r GROUP BY token) t ORDER BY %s %[3]s, token %[3]s LIMIT %[4]d`, source, column, direction, limit), args...)
		if err != nil {
			return err
		}
		top, err = collect(rows, scanToken)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("history: read the top tokens: %w", err)
	}
	return top, nil
}

// Resources returns the resources that a token has used, in the order of their names.
func (s *Store) Resources(ctx context.Context, id token.ID) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT resource FROM usage_minutes WHERE token = $1
		UNION SELECT resource FROM usage_hours WHERE token = $1`, string(id))
	if err != nil {
		return nil, fmt.Errorf("history: read resources: %w", err)
	}
	names, err := collect(rows, func(rows *sql.Rows) (r string, err error) { return r, rows.Scan(&r) })
	if err != nil {
		return nil, fmt.Errorf("history: read resources: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// Recent calls f with the rows of all tokens from an epoch minute on.
func (s *Store) Recent(ctx context.Context, from int64, f func(usage.Record) error) error {
	rows, err := s.db.QueryContext(ctx, `
		SELECT token, resource, minute, admitted, rejected, refunded, last_use
		FROM usage_minutes WHERE minute >= $1`, from)
	if err != nil {
		return fmt.Errorf("history: read rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return fmt.Errorf("history: read rows: %w", err)
		}
		if err := f(r); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("history: read rows: %w", err)
	}
	return nil
}
