package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tallygate/tallygate/internal/usage"
)

// Ingest stores a batch in one transaction: all of it or, after an error,
// nothing, unless the connection broke in the commit. Ingesting the same again,
// alone or with others, changes nothing.
func (s *Store) Ingest(ctx context.Context, batch usage.Batch) error {
	records, events := merge(batch.Records), distinct(batch.Events)
	if len(records) == 0 && len(events) == 0 {
		return nil
	}
	tooLate, err := s.engine.ingest(ctx, records, events)
	if err != nil {
		return fmt.Errorf("history: ingest %d records and %d events: %w", len(records), len(events), err)
	}
	s.tooLate.Add(int64(tooLate))
	return nil
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

// from returns the records of minutes from the given one on.
func from(records []usage.Record, minute int64) []usage.Record {
	return slices.DeleteFunc(records, func(r usage.Record) bool { return r.Minute < minute })
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

// distinct returns the events without those whose ID came before.
func distinct(events []usage.Event) []usage.Event {
	seen := make(map[string]bool, len(events))
	var out []usage.Event
	for _, e := range events {
		if !seen[e.ID] {
			seen[e.ID] = true
			out = append(out, e)
		}
	}
	return out
}

// without returns the events whose ID is not among known.
func without(events []usage.Event, known []string) []usage.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e usage.Event) bool { return slices.Contains(known, e.ID) })
}
