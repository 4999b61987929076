package history

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	ErrSort         = errors.New("invalid sort")
	ErrCursor       = errors.New("invalid cursor")
	ErrSpan         = errors.New("invalid span")
)

// columns are what tokens can be sorted by: name and column.
var columns = []struct{ name, column string }{
	{"ops", "ops"},
	{"rejected", "rejected"},
	{"refunded", "refunded"},
	{"first", "first_use"},
	{"last", "last_use"},
	{"token", "token"},
}

// Sort is an order of tokens. Tokens that are equal in it follow their IDs. The
// zero value is the highest ops first.
type Sort struct {
	column  int // index in columns
	forward bool
}

// ParseSort parses ops, rejected, refunded, first, last or token, with a minus
// sign before it for the highest first. The error wraps ErrSort.
func ParseSort(s string) (Sort, error) {
	name, descending := strings.CutPrefix(s, "-")
	for i, c := range columns {
		if c.name == name {
			return Sort{column: i, forward: !descending}, nil
		}
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return Sort{}, fmt.Errorf("%w: %.32q is none of %s, with a minus sign for the highest first", ErrSort, s, strings.Join(names, ", "))
}

// String returns what ParseSort parses.
func (s Sort) String() string {
	if s.forward {
		return columns[s.column].name
	}
	return "-" + columns[s.column].name
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
const MaxPage = 1000

// cursor is where a page ended: the last token and its place in the order.
type cursor struct {
	Sort  string   `json:"s"`
	Value int64    `json:"v"`
	Token token.ID `json:"t"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string, order Sort) (cursor, error) {
	var c cursor
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || json.Unmarshal(b, &c) != nil {
		return c, fmt.Errorf("%w: pass the one that came with the page before, unchanged", ErrCursor)
	}
	if c.Sort != order.String() {
		return c, fmt.Errorf("%w: it belongs to the order %.32q; keep the order from page to page", ErrCursor, c.Sort)
	}
	return c, nil
}

// Tokens returns a page of tokens and the cursor of the next, "" after the last.
func (s *Store) Tokens(ctx context.Context, page Page) ([]Token, string, error) {
	column, direction, beyond := columns[page.Sort.column].column, "DESC", "<"
	if page.Sort.forward {
		direction, beyond = "ASC", ">"
	}
	query, args := "SELECT "+tokenColumns+" FROM tokens", []any{page.Limit + 1}
	if page.After != "" {
		c, err := parseCursor(page.After, page.Sort)
		if err != nil {
			return nil, "", err
		}
		if column == "token" {
			query += fmt.Sprintf(" WHERE token %s $2", beyond)
			args = append(args, string(c.Token))
		} else {
			query += fmt.Sprintf(" WHERE (%s, token) %s ($2, $3)", column, beyond)
			args = append(args, c.Value, string(c.Token))
		}
	}
	if column == "token" {
		query += fmt.Sprintf(" ORDER BY token %s LIMIT $1", direction)
	} else {
		query += fmt.Sprintf(" ORDER BY %s %[2]s, token %[2]s LIMIT $1", column, direction)
	}
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, "", fmt.Errorf("history: read tokens: %w", err)
	}
	tokens, err := collect(rows, scanToken)
	if err != nil {
		return nil, "", fmt.Errorf("history: read tokens: %w", err)
	}
	if len(tokens) <= page.Limit {
		return tokens, "", nil
	}
	tokens = tokens[:page.Limit]
	last := tokens[len(tokens)-1]
	return tokens, cursor{page.Sort.String(), page.Sort.value(last), last.ID}.String(), nil
}

// value returns what t is sorted by, 0 when that is its ID.
func (s Sort) value(t Token) int64 {
	switch columns[s.column].name {
	case "ops":
		return t.Ops
	case "rejected":
		return t.Rejected
	case "refunded":
		return t.Refunded
	case "first":
		return t.First
	case "last":
		return t.Last
	}
	return 0
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
// length since the epoch (a step of a day begins at midnight UTC), so the first
// begins at or before From.
type Span struct {
	From, To time.Time     // half-open
	Step     time.Duration // whole minutes
}

// MaxPoints is the largest number of steps in a span.
const MaxPoints = 10_000

// minutes returns the span in epoch minutes: the begin of the first step, the end
// (exclusive) and the length of a step.
func (s Span) minutes() (from, to, step int64, err error) {
	switch {
	case s.Step < time.Minute || s.Step%time.Minute != 0:
		return 0, 0, 0, fmt.Errorf("%w: the step is %s, but must be whole minutes", ErrSpan, s.Step)
	case !s.From.Before(s.To):
		return 0, 0, 0, fmt.Errorf("%w: from must be before to", ErrSpan)
	case s.From.Unix() < 0:
		return 0, 0, 0, fmt.Errorf("%w: from is before 1970", ErrSpan)
	}
	step = int64(s.Step / time.Minute)
	from = s.From.Unix() / 60 / step * step
	to = (s.To.Unix() + 59) / 60
	if points := (to - from + step - 1) / step; points > MaxPoints {
		return 0, 0, 0, fmt.Errorf("%w: it has %d steps, at most %d are allowed; take a longer step", ErrSpan, points, MaxPoints)
	}
	return from, to, step, nil
}

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
	query := `SELECT minute / $1 * $1 AS start, sum(admitted), sum(rejected), sum(refunded), max(last_use)
		FROM usage_minutes WHERE token = $2 AND minute >= $3 AND minute < $4`
	args := []any{step, string(id), from, to}
	if len(resources) > 0 {
		marks := make([]string, len(resources))
		for i, r := range resources {
			args = append(args, r)
			marks[i] = fmt.Sprintf("$%d", len(args))
		}
		query += " AND resource IN (" + strings.Join(marks, ", ") + ")"
	}
	rows, err := s.db.QueryContext(ctx, query+" GROUP BY start", args...)
	if err != nil {
		return nil, fmt.Errorf("history: read usage: %w", err)
	}
	defer rows.Close()
	points := make([]Point, (to-from+step-1)/step)
	for i := range points {
		points[i].Start = time.Unix((from+int64(i)*step)*60, 0).UTC()
	}
	for rows.Next() {
		var start int64
		var t usage.Totals
		if err := rows.Scan(&start, &t.Admitted, &t.Rejected, &t.Refunded, &t.Last); err != nil {
			return nil, fmt.Errorf("history: read usage: %w", err)
		}
		points[(start-from)/step].Totals = t
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history: read usage: %w", err)
	}
	return points, nil
}

// Resources returns the resources that a token has used, in the order of their names.
func (s *Store) Resources(ctx context.Context, id token.ID) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT DISTINCT resource FROM usage_minutes WHERE token = $1", string(id))
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
		var r usage.Record
		if err := rows.Scan(&r.Token, &r.Resource, &r.Minute, &r.Admitted, &r.Rejected, &r.Refunded, &r.Last); err != nil {
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
