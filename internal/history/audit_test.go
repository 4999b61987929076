package history_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/errgroup"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

func event(n int, id token.ID, kind, after string) usage.Event {
	e := usage.Event{ID: fmt.Sprint("e", n), Token: id, At: int64(noon*60_000 + n), Kind: kind, Actor: "ops", Reason: "why"}
	if after != "" {
		e.After = json.RawMessage(after)
	}
	return e
}

// tamper runs statements past the store, as someone with access to the tables would.
func tamper(t *testing.T, url string, statements ...string) error {
	t.Helper()
	driver, address := "pgx", url
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, address = "sqlite", path
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			return err
		}
	}
	return nil
}

// unguard takes away what keeps the table append-only.
func unguard(url string) []string {
	if strings.HasPrefix(url, "sqlite:") {
		return []string{"DROP TRIGGER audit_events_erase_only", "DROP TRIGGER audit_events_no_delete"}
	}
	return []string{"ALTER TABLE audit_events DISABLE TRIGGER ALL"}
}

func TestEventsAreKeptOnceInOrderOfArrival(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx, s := context.Background(), open(t, url)
		var g errgroup.Group
		for w := range 4 { // the same ten events from each of four, in portions
			g.Go(func() error {
				for i := range 10 {
					n := (i + 3*w) % 10
					batch := usage.Batch{Events: []usage.Event{event(n, token.ID(fmt.Sprint("t", n%2)), "token.blocked", `{"a": 1}`), event(n, "", "x.y", "")}}
					if err := s.Ingest(ctx, batch); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		var met []string
		var last int64 = 11
		for after := ""; ; {
			page, next, err := s.Events(ctx, history.EventPage{Limit: 3, After: after})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				if e.Seq != last-1 {
					t.Errorf("event %d follows %d", e.Seq, last)
				}
				last = e.Seq
				met = append(met, e.ID)
				if want := event(int(e.ID[1]-'0'), e.Token, "token.blocked", `{"a": 1}`); fmt.Sprint(e.Event) != fmt.Sprint(want) {
					t.Errorf("kept as %v, want %v", e.Event, want)
				}
			}
			if after = next; after == "" {
				break
			}
		}
		slices.Sort(met)
		if want := []string{"e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8", "e9"}; !slices.Equal(met, want) {
			t.Errorf("met %v", met)
		}
		page, next, err := s.Events(ctx, history.EventPage{Token: "t1", Kind: "token.blocked", Limit: 100})
		if len(page) != 5 || next != "" || err != nil {
			t.Errorf("events of t1: %d, %q, %v", len(page), next, err)
		}
		if _, _, err := s.Events(ctx, history.EventPage{Limit: 1, After: "x"}); !errors.Is(err, history.ErrCursor) {
			t.Errorf("a bad cursor: %v", err)
		}
	})
}

func TestVerifyAuditNamesEveryKindOfTampering(t *testing.T) {
	onEach(t, func(t *testing.T, template string) {
		for name, c := range map[string]struct {
			statement string
			want      []string // one fault each
		}{
			"nothing":            {"SELECT 1", nil},
			"reason altered":     {"UPDATE audit_events SET reason = 'another' WHERE seq = 3", []string{`event 3 (token.blocked "e3"): its token, reason`}},
			"state altered":      {"UPDATE audit_events SET after = '{}' WHERE seq = 3", []string{`event 3 (token.blocked "e3"): its token, reason, before or after`}},
			"absent made empty":  {"UPDATE audit_events SET before = '' WHERE seq = 3", []string{`event 3`}},
			"actor altered":      {"UPDATE audit_events SET actor = 'nobody' WHERE seq = 4", []string{`event 4 (token.blocked "e4"): its place`}},
			"time altered":       {"UPDATE audit_events SET at_ms = at_ms + 1 WHERE seq = 5", []string{`event 5 (token.blocked "e5"): its place`}},
			"one removed":        {"DELETE FROM audit_events WHERE seq = 2", []string{"event 2 is missing"}},
			"several removed":    {"DELETE FROM audit_events WHERE seq IN (2, 3)", []string{"events 2 to 3 are missing"}},
			"the first removed":  {"DELETE FROM audit_events WHERE seq = 1", []string{"event 1 is missing"}},
			"the last removed":   {"DELETE FROM audit_events WHERE seq = 6", []string{"events 6 to 6 are missing at the end"}},
			"removed and closed": {"DELETE FROM audit_events WHERE seq = 5; UPDATE audit_events SET seq = 5 WHERE seq = 6", []string{`event 5 (token.blocked "e6"): its place`, "events 6 to 6 are missing at the end"}},
			"two exchanged": {
				"UPDATE audit_events SET seq = 100 WHERE seq = 2; UPDATE audit_events SET seq = 2 WHERE seq = 3; UPDATE audit_events SET seq = 3 WHERE seq = 100",
				[]string{`event 2 (token.blocked "e3")`, `event 3 (token.blocked "e2")`, `event 4 (token.blocked "e4")`},
			},
			"one added": {
				"INSERT INTO audit_events SELECT 7, 'new', token, at_ms, kind, actor, reason, before, after, salt, content, chain FROM audit_events WHERE seq = 6",
				[]string{`event 7 (token.blocked "new"): its place`, "events 7 to 7 were added by hand"},
			},
			"the end moved": {"UPDATE audit_head SET chain = (SELECT chain FROM audit_events WHERE seq = 1)", []string{"the chain ends otherwise"}},
		} {
			t.Run(name, func(t *testing.T) {
				url := template
				if strings.HasPrefix(url, "sqlite:") {
					url = "sqlite:" + filepath.Join(t.TempDir(), "history.db")
				} else {
					url = freshPostgres(t)
				}
				ctx, s := context.Background(), open(t, url)
				for n := range 6 {
					if err := s.Ingest(ctx, usage.Batch{Events: []usage.Event{event(n+1, "a", "token.blocked", `{"status":"blocked"}`)}}); err != nil {
						t.Fatal(err)
					}
				}
				if err := tamper(t, url, append(unguard(url), strings.Split(c.statement, ";")...)...); err != nil {
					t.Fatal(err)
				}
				audit, err := s.VerifyAudit(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if len(audit.Faults) != len(c.want) {
					t.Fatalf("faults %q, want %q", audit.Faults, c.want)
				}
				for i, f := range audit.Faults {
					if !strings.HasPrefix(f, c.want[i]) {
						t.Errorf("fault %q, want %q…", f, c.want[i])
					}
				}
			})
		}
	})
}

func TestAuditEventsAreAppendOnly(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s := open(t, url)
		if err := s.Ingest(context.Background(), usage.Batch{Events: []usage.Event{event(1, "a", "x.y", "")}}); err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{
			"DELETE FROM audit_events", "UPDATE audit_events SET reason = 'no'", "UPDATE audit_events SET kind = 'no', reason = '', salt = substr(salt, 1, 0)",
		} {
			if err := tamper(t, url, statement); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %v", statement, err)
			}
		}
	})
}

func TestErasureRemovesThePersonAndKeepsTheSums(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx, s := context.Background(), open(t, url)
		now := at(noon + 10)
		usageOf := []usage.Record{record("jane", "", noon, 7, 1), record("jane", "search", noon-3000, 2, 0), record("joe", "", noon, 1, 0)}
		ingest(t, s, usageOf...)
		if err := s.Ingest(ctx, usage.Batch{Events: []usage.Event{event(1, "jane", "owner.set", `{"owner":"Jane Roe","labels":["vip"]}`), event(2, "joe", "x.y", "")}}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Rollup(ctx, now.Add(48*time.Hour)); err != nil {
			t.Fatal(err)
		}
		before, err := s.Sum(ctx)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.Erase(ctx, "jane", "privacy desk", "asked for on paper", now)
		if err != nil {
			t.Fatal(err)
		}
		// What was still under way, and grew meanwhile.
		ingest(t, s, usageOf[0], record("jane", "", noon, 9, 1))
		if err := s.Ingest(ctx, usage.Batch{Events: []usage.Event{event(1, "jane", "owner.set", `{"owner":"Jane Roe"}`)}}); err != nil {
			t.Fatal(err)
		}

		if after, err := s.Sum(ctx); err != nil || after.Admitted != before.Admitted+2 || after.Rejected != before.Rejected {
			t.Errorf("sum %+v, %v, was %+v", after, err, before)
		}
		if account, err := s.Token(ctx, id); err != nil || account.Ops != 11 {
			t.Errorf("account of %s: %+v, %v", id, account, err)
		}
		if _, err := s.Token(ctx, "jane"); !errors.Is(err, history.ErrUnknownToken) {
			t.Errorf("the erased token: %v", err)
		}
		if audit, err := s.VerifyAudit(ctx); len(audit.Faults) > 0 || audit.Events != 3 || err != nil {
			t.Errorf("audit %+v, %v", audit, err)
		}
		events, _, err := s.Events(ctx, history.EventPage{Token: id, Limit: 10})
		if err != nil || len(events) != 2 || events[0].Kind != "token.erased" || !events[1].Erased || events[1].After != nil || events[1].Reason != "" {
			t.Errorf("events %+v, %v", events, err)
		}
		if found := grep(t, url, "jane"); found != "" {
			t.Errorf("still there: %s", found)
		}
		if _, err := s.Erase(ctx, "nobody", "privacy desk", "", now); !errors.Is(err, history.ErrUnknownToken) {
			t.Errorf("Erase of a stranger: %v", err)
		}
		if err := s.ForgetErasures(ctx, now.AddDate(0, 0, 8)); err != nil {
			t.Fatal(err)
		}
		ingest(t, s, record("jane", "", noon+20000, 1, 0))
		if account, err := s.Token(ctx, "jane"); err != nil || account.Ops != 1 {
			t.Errorf("a new token of the old name: %+v, %v", account, err)
		}
	})
}
