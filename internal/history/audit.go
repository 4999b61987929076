package history

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// link is an event's place in the hash chain.
//
// The chain runs over a hash of the content and not over the content, so that
// what an event says about a person can be erased and the chain still holds. The
// salt goes with the content: without it nobody can guess the content back.
type link struct {
	seq     int64
	salt    []byte
	content []byte
	chain   []byte
}

// next appends e to a chain that ends with l.
func (l link) next(e usage.Event) link {
	n := link{seq: l.seq + 1, salt: make([]byte, 16)}
	_, _ = rand.Read(n.salt) // never fails
	n.content = contentHash(n.salt, e)
	n.chain = chainHash(l.chain, n.seq, e, n.content)
	return n
}

func contentHash(salt []byte, e usage.Event) []byte {
	return digest(salt, []byte(e.Token), []byte(e.Reason), present(e.Before), present(e.After))
}

func chainHash(previous []byte, seq int64, e usage.Event, content []byte) []byte {
	return digest(previous, number(seq), []byte(e.ID), number(e.At), []byte(e.Kind), []byte(e.Actor), content)
}

// present tells an absent JSON value from every one that is there.
func present(v json.RawMessage) []byte {
	if v == nil {
		return nil
	}
	return append([]byte{'='}, v...)
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// digest is SHA-256 over parts, each led by its length, so that no two lists of
// parts give the same input.
func digest(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(number(int64(len(p))))
		h.Write(p)
	}
	return h.Sum(nil)
}

// appendEvents appends the events that are not there yet to the chain, and takes
// over what they say about tokens. The caller holds the audit lock.
func appendEvents(ctx context.Context, tx *sql.Tx, events []usage.Event) error {
	var end link
	if err := tx.QueryRowContext(ctx, `SELECT seq, chain FROM audit_head`).Scan(&end.seq, &end.chain); err != nil {
		return err
	}
	var added []usage.Event
	for _, e := range events {
		next := end.next(e)
		result, err := tx.ExecContext(ctx, `
			INSERT INTO audit_events (seq, id, token, at_ms, kind, actor, reason, before, after, salt, content, chain)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (id) DO NOTHING`,
			next.seq, e.ID, string(e.Token), e.At, e.Kind, e.Actor, e.Reason, nullable(e.Before), nullable(e.After),
			next.salt, next.content, next.chain)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil {
			return err
		} else if n == 1 {
			end, added = next, append(added, e)
		}
	}
	if len(added) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `UPDATE audit_head SET seq = $1, chain = $2`, end.seq, end.chain); err != nil {
		return err
	}
	return applyAttributes(ctx, tx, added)
}

// nullable returns v as a text column takes it.
func nullable(v json.RawMessage) any {
	if v == nil {
		return nil
	}
	return string(v)
}

// Event is an audit event as it is kept.
type Event struct {
	Seq int64 // its place in the order of arrival: 1, 2, 3, …
	usage.Event
	// Erased: token, reason, before and after were removed on request.
	Erased bool
}

// EventPage asks for events, the last that arrived first.
type EventPage struct {
	Token token.ID // only those about it; "" is all
	Kind  string   // only those of this kind; "" is all
	Limit int      // events at most; 1 to MaxPage
	After string   // the cursor that came with the page before; "" is the beginning
}

// Events returns a page of events and the cursor of the next, "" after the last.
// The error wraps ErrCursor when the cursor is none.
func (s *Store) Events(ctx context.Context, page EventPage) ([]Event, string, error) {
	query, args := "SELECT "+eventColumns+" FROM audit_events WHERE true", []any{}
	filter := func(condition string, value any) {
		args = append(args, value)
		query += fmt.Sprintf(" AND %s $%d", condition, len(args))
	}
	if page.Token != "" {
		filter("token =", string(page.Token))
	}
	if page.Kind != "" {
		filter("kind =", page.Kind)
	}
	if page.After != "" {
		seq, err := strconv.ParseInt(page.After, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("%w: pass the one that came with the page before, unchanged", ErrCursor)
		}
		filter("seq <", seq)
	}
	rows, err := s.db.QueryContext(ctx, query+fmt.Sprintf(" ORDER BY seq DESC LIMIT %d", page.Limit+1), args...)
	if err != nil {
		return nil, "", fmt.Errorf("history: read events: %w", err)
	}
	kept, err := collect(rows, scanEvent)
	if err != nil {
		return nil, "", fmt.Errorf("history: read events: %w", err)
	}
	next := ""
	if len(kept) > page.Limit {
		kept = kept[:page.Limit]
		next = strconv.FormatInt(kept[len(kept)-1].seq, 10)
	}
	events := make([]Event, len(kept))
	for i, k := range kept {
		events[i] = Event{Seq: k.seq, Event: k.Event, Erased: len(k.salt) == 0}
	}
	return events, next, nil
}

// keptEvent is an event's row.
type keptEvent struct {
	usage.Event
	link
}

const eventColumns = "seq, id, token, at_ms, kind, actor, reason, before, after, salt, content, chain"

func scanEvent(rows *sql.Rows) (keptEvent, error) {
	var k keptEvent
	var before, after sql.NullString
	err := rows.Scan(&k.seq, &k.ID, &k.Token, &k.At, &k.Kind, &k.Actor, &k.Reason, &before, &after, &k.salt, &k.content, &k.chain)
	if before.Valid {
		k.Before = json.RawMessage(before.String)
	}
	if after.Valid {
		k.After = json.RawMessage(after.String)
	}
	return k, err
}

// Audit is the outcome of VerifyAudit.
type Audit struct {
	Events int64  // how many there are
	Head   string // the end of the chain, hexadecimal; note it elsewhere, it stands for all events before it
	// Faults name what was altered, removed or put elsewhere, in the order of the
	// chain; none means that the chain holds.
	Faults []string
}

// maxFaults is how many faults are named; more of them say nothing new.
const maxFaults = 100

// VerifyAudit walks along the whole chain of audit events. Whoever can write to
// the database and makes the whole chain anew is found only by comparing Head (or
// any event's chain value) with one noted elsewhere earlier.
func (s *Store) VerifyAudit(ctx context.Context) (Audit, error) {
	var audit Audit
	err := s.look(ctx, func(v *view) error {
		var head link
		if err := v.tx.QueryRowContext(ctx, `SELECT seq, chain FROM audit_head`).Scan(&head.seq, &head.chain); err != nil {
			return err
		}
		rows, err := v.tx.QueryContext(ctx, "SELECT "+eventColumns+" FROM audit_events ORDER BY seq")
		if err != nil {
			return err
		}
		defer rows.Close()
		var end link
		for rows.Next() && len(audit.Faults) < maxFaults {
			k, err := scanEvent(rows)
			if err != nil {
				return err
			}
			audit.Events++
			audit.Faults = append(audit.Faults, k.faults(end)...)
			end = k.link
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if len(audit.Faults) < maxFaults {
			audit.Faults = append(audit.Faults, headFaults(end, head)...)
		}
		audit.Head = fmt.Sprintf("%x", head.chain)
		return nil
	})
	if err != nil {
		return Audit{}, fmt.Errorf("history: verify the audit events: %w", err)
	}
	return audit, nil
}

// faults returns what is wrong with k as the event after end.
func (k keptEvent) faults(end link) []string {
	name := fmt.Sprintf("event %d (%s %q)", k.seq, k.Kind, k.ID)
	var faults []string
	if len(k.salt) > 0 && string(contentHash(k.salt, k.Event)) != string(k.content) {
		faults = append(faults, name+": its token, reason, before or after was altered")
	}
	switch {
	case k.seq == end.seq+2:
		faults = append(faults, fmt.Sprintf("event %d is missing", end.seq+1))
	case k.seq > end.seq+2:
		faults = append(faults, fmt.Sprintf("events %d to %d are missing", end.seq+1, k.seq-1))
	case string(chainHash(end.chain, k.seq, k.Event, k.content)) != string(k.chain):
		faults = append(faults, name+": its place, ID, time, kind or actor was altered, or another stood before it")
	}
	return faults
}

// headFaults compares the last event with where the chain should end.
func headFaults(end, head link) []string {
	switch {
	case end.seq < head.seq:
		return []string{fmt.Sprintf("events %d to %d are missing at the end", end.seq+1, head.seq)}
	case end.seq > head.seq:
		return []string{fmt.Sprintf("events %d to %d were added by hand", head.seq+1, end.seq)}
	case string(end.chain) != string(head.chain):
		return []string{fmt.Sprintf("the chain ends otherwise than it did when event %d was appended", head.seq)}
	}
	return nil
}
