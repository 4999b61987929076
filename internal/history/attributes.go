package history

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/tallygate/tallygate/internal/usage"
)

// Attributes of a token are what the audit events say about it: an event's After,
// if it is a JSON object, gives the new state in any of these members,
//
//	{"policy": "pro", "owner": "acme", "status": "blocked", "labels": ["eu", "trial"]}
//
// where null or "" takes an attribute away. Each attribute is as its latest event
// says, by the event's own time and then by its ID: in whatever order events
// arrive, the outcome is the same.
type attributes struct {
	policy, owner, status string
	labels                []string // sorted
	marks                 map[string]mark
}

// mark is when an attribute was set and by which event.
type mark struct {
	at int64 // unix ms
	id string
}

func (m mark) MarshalJSON() ([]byte, error) { return json.Marshal([]any{m.at, m.id}) }

func (m *mark) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &[]any{&m.at, &m.id}) }

// apply takes over what e says and what no later event has said; it reports
// whether there was any such thing. A member of another type than it should have
// says nothing.
func (a *attributes) apply(e usage.Event) (changed bool) {
	var after map[string]json.RawMessage
	if json.Unmarshal(e.After, &after) != nil {
		return false
	}
	for name, value := range after {
		set := a.setter(name, value)
		if set == nil {
			continue
		}
		old, now := a.marks[name], mark{e.At, e.ID}
		if cmp.Or(cmp.Compare(now.at, old.at), cmp.Compare(now.id, old.id)) <= 0 {
			continue
		}
		set()
		if a.marks == nil {
			a.marks = map[string]mark{}
		}
		a.marks[name], changed = now, true
	}
	return changed
}

// setter returns what sets the named attribute to value; nil if it cannot be.
func (a *attributes) setter(name string, value json.RawMessage) func() {
	field, ok := map[string]*string{"policy": &a.policy, "owner": &a.owner, "status": &a.status}[name]
	if ok {
		var s string // null leaves it empty
		if json.Unmarshal(value, &s) != nil {
			return nil
		}
		return func() { *field = s }
	}
	if name == "labels" {
		var all []string
		if json.Unmarshal(value, &all) != nil {
			return nil
		}
		slices.Sort(all)
		return func() { a.labels = slices.Compact(all) }
	}
	return nil
}

// applyAttributes keeps the attributes of the events' tokens. The caller holds
// the audit lock, so nobody else does at the same time.
func applyAttributes(ctx context.Context, tx *sql.Tx, events []usage.Event) error {
	for _, e := range events {
		if e.Token == "" || e.After == nil {
			continue
		}
		a, err := readAttributes(ctx, tx, string(e.Token))
		if err != nil {
			return err
		}
		if a.apply(e) {
			if err := a.write(ctx, tx, string(e.Token)); err != nil {
				return err
			}
		}
	}
	return nil
}

func readAttributes(ctx context.Context, tx *sql.Tx, token string) (attributes, error) {
	var a attributes
	var labels, marks []byte
	err := tx.QueryRowContext(ctx, `SELECT policy, owner, status, labels, marks FROM token_attributes WHERE token = $1`, token).
		Scan(&a.policy, &a.owner, &a.status, &labels, &marks)
	if errors.Is(err, sql.ErrNoRows) {
		return a, nil
	}
	if err == nil {
		err = errors.Join(json.Unmarshal(labels, &a.labels), json.Unmarshal(marks, &a.marks))
	}
	return a, err
}

func (a attributes) write(ctx context.Context, tx *sql.Tx, token string) error {
	labels, err := json.Marshal(slices.Concat([]string{}, a.labels))
	if err != nil {
		return err
	}
	marks, err := json.Marshal(a.marks)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO token_attributes (token, policy, owner, status, labels, marks) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (token) DO UPDATE SET policy = excluded.policy, owner = excluded.owner, status = excluded.status,
			labels = excluded.labels, marks = excluded.marks`,
		token, a.policy, a.owner, a.status, string(labels), string(marks))
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM token_labels WHERE token = $1`, token); err != nil {
		return err
	}
	for _, label := range a.labels {
		if _, err := tx.ExecContext(ctx, `INSERT INTO token_labels (token, label) VALUES ($1, $2)`, token, label); err != nil {
			return err
		}
	}
	return nil
}
