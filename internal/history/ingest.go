package history

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"slices"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Ingest stores a batch: its records as a whole, and then its events as a whole.
// After an error some of it may have been stored. Ingesting the same again, alone
// or with others, changes nothing.
func (s *Store) Ingest(ctx context.Context, batch usage.Batch) error {
	if records := merge(batch.Records); len(records) > 0 {
		tooLate, err := s.engine.ingest(ctx, records)
		if err != nil {
			return fmt.Errorf("history: ingest %d records: %w", len(records), err)
		}
		s.tooLate.Add(int64(tooLate))
	}
	if len(batch.Events) > 0 {
		err := s.engine.write(ctx, func(tx *sql.Tx) error {
			// Whoever appends does so alone, or the chain would fork.
			if err := s.engine.lockAudit(ctx, tx); err != nil {
				return err
			}
			state, err := readState(ctx, tx)
			if err != nil {
				return err
			}
			return appendEvents(ctx, tx, state.replaceEvents(batch.Events))
		})
		if err != nil {
			return fmt.Errorf("history: ingest %d events: %w", len(batch.Events), err)
		}
	}
	return nil
}

// state is what decides about a record at the time when it comes.
type state struct {
	minutesFrom int64 // epoch minute: those before are dropped
	erased      []erasure
}

// erasure says that a token, known by its digest only, is now called otherwise.
type erasure struct {
	Digest      []byte
	Replacement string
}

func readState(ctx context.Context, tx *sql.Tx) (state, error) {
	var s state
	if err := tx.QueryRowContext(ctx, `SELECT minutes_from FROM history_state`).Scan(&s.minutesFrom); err != nil {
		return s, err
	}
	rows, err := tx.QueryContext(ctx, `SELECT digest, replacement FROM erasures`)
	if err != nil {
		return s, err
	}
	s.erased, err = collect(rows, func(rows *sql.Rows) (e erasure, err error) { return e, rows.Scan(&e.Digest, &e.Replacement) })
	return s, err
}

// admit returns the records of minutes that are kept, those of erased tokens under
// their replacement's name. Keys may be there twice then.
func (s state) admit(records []usage.Record) []usage.Record {
	admitted := make([]usage.Record, 0, len(records))
	for _, r := range records {
		if r.Minute >= s.minutesFrom {
			r.Token = s.name(r.Token)
			admitted = append(admitted, r)
		}
	}
	return admitted
}

func (s state) replaceEvents(events []usage.Event) []usage.Event {
	replaced := slices.Clone(events)
	for i := range replaced {
		replaced[i].Token = s.name(replaced[i].Token)
	}
	return replaced
}

// name returns the replacement of an erased token, and any other token itself.
func (s state) name(id token.ID) token.ID {
	if len(s.erased) == 0 || id == "" {
		return id
	}
	digest := sha256.Sum256([]byte(id))
	for _, e := range s.erased {
		if string(e.Digest) == string(digest[:]) {
			return token.ID(e.Replacement)
		}
	}
	return id
}

// merge returns the records sorted by key, those with the same key as one.
// Writers that lock in one order cannot deadlock, and rows that lie together are
// written together.
func merge(records []usage.Record) []usage.Record {
	merged := slices.Clone(records)
	slices.SortFunc(merged, func(a, b usage.Record) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Minute, b.Minute))
	})
	n := 0
	for _, r := range merged {
		if n > 0 && merged[n-1].Key == r.Key {
			merged[n-1].Totals = merged[n-1].Max(r.Totals)
			continue
		}
		merged[n] = r
		n++
	}
	return merged[:n]
}

// hoursOf returns the epoch hours that the records are in, in order.
func hoursOf(records []usage.Record) []int64 {
	var hours []int64
	for _, r := range records {
		if h := r.Minute / perHour; len(hours) == 0 || h != hours[len(hours)-1] {
			hours = append(hours, h)
		}
	}
	slices.Sort(hours)
	return slices.Compact(hours)
}
