package history

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Rows asks for rows of usage as they are kept.
type Rows struct {
	From, To  time.Time     // half-open; rows of whose time the beginning lies within
	Step      time.Duration // of a row: time.Minute, time.Hour or 24 h
	Tokens    []token.ID    // only these; none means all
	Resources []string      // only these; none means all
}

// rowTables are the tables of rows by their step.
var rowTables = map[time.Duration]part{
	time.Minute:    {table: "usage_minutes", column: "minute", step: perMinute},
	time.Hour:      {table: "usage_hours", column: "hour", step: perHour},
	24 * time.Hour: {table: "usage_days", column: "day", step: perDay},
}

// rowsPerRead is how many rows are held in memory.
const rowsPerRead = 10_000

// EachRows calls f with portions of the rows, in the order of token, resource and
// time. The slice is used again after f returns. Key.Minute is the epoch minute in
// which the row begins, whatever its step. Rows of hours and days are as of the last rollup.
// A long read holds no transaction open: what changes meanwhile may be in it or not.
func (s *Store) EachRows(ctx context.Context, q Rows, f func([]usage.Record) error) error {
	where, table, err := q.clause()
	if err != nil {
		return err
	}
	var last *usage.Key
	for {
		page := clause{all: append([]string(nil), where.all...), args: append([]any(nil), where.args...)}
		if last != nil {
			page.add("(token, resource, "+table.column+") > (%s, %s, %s)", string(last.Token), last.Resource, last.Minute/table.step)
		}
		rows, err := s.db.QueryContext(ctx, fmt.Sprintf(`SELECT token, resource, %[1]s * %[2]d, admitted, rejected, refunded, last_use
			FROM %[3]s WHERE %[4]s ORDER BY token, resource, %[1]s LIMIT %[5]d`,
			table.column, table.step, table.table, &page, rowsPerRead), page.args...)
		if err != nil {
			return fmt.Errorf("history: read rows: %w", err)
		}
		portion, err := collect(rows, scanRecord)
		if err != nil {
			return fmt.Errorf("history: read rows: %w", err)
		}
		if len(portion) > 0 {
			if err := f(portion); err != nil {
				return err
			}
		}
		if len(portion) < rowsPerRead {
			return nil
		}
		last = &portion[len(portion)-1].Key
	}
}

// CountRows returns how many rows EachRows would read.
func (s *Store) CountRows(ctx context.Context, q Rows) (int64, error) {
	where, table, err := q.clause()
	if err != nil {
		return 0, err
	}
	var n int64
	if err := s.db.QueryRowContext(ctx, fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s`, table.table, where), where.args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("history: count rows: %w", err)
	}
	return n, nil
}

func (q Rows) clause() (*clause, part, error) {
	table, ok := rowTables[q.Step]
	if !ok {
		return nil, part{}, fmt.Errorf("%w: rows are kept by the minute, hour and day, not by %s", ErrSpan, q.Step)
	}
	if q.To.Before(q.From) {
		return nil, part{}, fmt.Errorf("%w: from must be before to", ErrSpan)
	}
	c := &clause{}
	step := table.step * 60
	c.add(table.column+" >= %s", (q.From.Unix()+step-1)/step)
	c.add(table.column+" < %s", (q.To.Unix()+step-1)/step)
	if len(q.Tokens) > 0 {
		ids := make([]string, len(q.Tokens))
		for i, id := range q.Tokens {
			ids[i] = string(id)
		}
		c.all = append(c.all, "true"+in("token", ids, &c.args))
	}
	if len(q.Resources) > 0 {
		c.all = append(c.all, "true"+in("resource", q.Resources, &c.args))
	}
	return c, table, nil
}

func scanRecord(rows *sql.Rows) (usage.Record, error) {
	var r usage.Record
	err := rows.Scan(&r.Token, &r.Resource, &r.Minute, &r.Admitted, &r.Rejected, &r.Refunded, &r.Last)
	return r, err
}
