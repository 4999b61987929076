package history

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// Steps of the tables, in minutes.
const (
	perMinute = 1
	perHour   = 60
	perDay    = 24 * 60
)

// view is one consistent look at the history, in which each stretch of time is
// read from the coarsest table that has it: days, where they are made and clean,
// else hours, else minutes.
type view struct {
	tx         *sql.Tx
	from       int64 // epoch minute: what was before has no minutes any more
	dirtyHours map[int64]bool
	dirtyDays  map[int64]bool
}

// look calls f with a view that ends when f returns.
func (s *Store) look(ctx context.Context, f func(*view) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: s.engine.snapshot(), ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	v := &view{tx: tx, dirtyHours: map[int64]bool{}, dirtyDays: map[int64]bool{}}
	if err := tx.QueryRowContext(ctx, `SELECT minutes_from FROM history_state`).Scan(&v.from); err != nil {
		return err
	}
	rows, err := tx.QueryContext(ctx, `SELECT step, bucket FROM rollup_dirty`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var step, bucket int64
		if err := rows.Scan(&step, &bucket); err != nil {
			return err
		}
		if step == perHour {
			v.dirtyHours[bucket] = true
			v.dirtyDays[bucket/24] = true
		} else {
			v.dirtyDays[bucket] = true
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := rows.Close(); err != nil {
		return err
	}
	return f(v)
}

// stretch is a half-open span of buckets of one table.
type stretch struct{ from, to int64 }

// plan divides the minutes [from, to) among the tables, using none that is
// coarser than grain (perMinute, perHour or perDay). It returns epoch days, hours
// and minutes, each as maximal stretches in order.
func (v *view) plan(from, to, grain int64) (days, hours, minutes []stretch) {
	add := func(list *[]stretch, from, to int64) {
		if n := len(*list); n > 0 && (*list)[n-1].to == from {
			(*list)[n-1].to = to
			return
		}
		*list = append(*list, stretch{from, to})
	}
	for at := from; at < to; {
		day, hour := at/perDay, at/perHour
		switch {
		case grain >= perDay && at%perDay == 0 && at+perDay <= to && !v.dirtyDays[day]:
			add(&days, day, day+1)
			at += perDay
		case grain >= perHour && at%perHour == 0 && at+perHour <= to && !v.dirtyHours[hour]:
			add(&hours, hour, hour+1)
			at += perHour
		default:
			next := min((hour+1)*perHour, to)
			add(&minutes, at, next)
			at = next
		}
	}
	return days, hours, minutes
}

// rows returns a subquery over the minutes [from, to), in parentheses: columns
// minute (where a row's bucket begins), the given others, admitted, rejected,
// refunded and last_use. Each table is filtered by where, a condition on the
// columns. The error wraps ErrSpan when minutes are needed that are not kept.
func (v *view) rows(from, to, grain int64, columns []string, where string) (string, error) {
	days, hours, minutes := v.plan(from, to, grain)
	return v.union(columns, where,
		part{"usage_days", "day", perDay, days}, part{"usage_hours", "hour", perHour, hours}, part{"usage_minutes", "minute", perMinute, minutes})
}

// totalRows is rows for all tokens together.
func (v *view) totalRows(from, to, grain int64, where string) (string, error) {
	_, hours, minutes := v.plan(from, to, min(grain, perHour))
	return v.union(nil, where,
		part{"total_hours", "hour", perHour, hours}, part{"usage_minutes", "minute", perMinute, minutes})
}

// part is what is read from one table.
type part struct {
	table, column string
	step          int64 // minutes of one bucket
	stretches     []stretch
}

func (v *view) union(columns []string, where string, parts ...part) (string, error) {
	others := ""
	for _, c := range columns {
		others += ", " + c
	}
	var selects []string
	for _, p := range parts {
		if len(p.stretches) == 0 {
			continue
		}
		if p.step == perMinute && p.stretches[0].from < v.from {
			return "", fmt.Errorf("%w: before %s only whole hours are kept; let from, to and the step be whole hours",
				ErrSpan, time.Unix(v.from*60, 0).UTC().Format(time.RFC3339))
		}
		// A bound over all stretches spares partitions; numbers are safe in a query's text.
		var inside []string
		for _, s := range p.stretches {
			inside = append(inside, fmt.Sprintf("%[1]s >= %[2]d AND %[1]s < %[3]d", p.column, s.from, s.to))
		}
		bound := ""
		if len(inside) > 1 {
			bound = fmt.Sprintf("%[1]s >= %[2]d AND %[1]s < %[3]d AND ", p.column, p.stretches[0].from, p.stretches[len(p.stretches)-1].to)
		}
		selects = append(selects, fmt.Sprintf("SELECT %s * %d AS minute%s, admitted, rejected, refunded, last_use FROM %s WHERE %s AND %s(%s)",
			p.column, p.step, others, p.table, where, bound, strings.Join(inside, " OR ")))
	}
	if len(selects) == 0 { // an empty span
		selects = append(selects, fmt.Sprintf("SELECT minute%s, admitted, rejected, refunded, last_use FROM usage_minutes WHERE false AND %s", others, where))
	}
	return "(" + strings.Join(selects, " UNION ALL ") + ")", nil
}
