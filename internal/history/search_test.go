package history_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/query/querytest"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestTheHistoryAnswersQueriesAsAnySource(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		keeps := []query.Field{
			query.Token, query.Policy, query.Owner, query.Status, query.Label,
			query.Ops, query.Rejected, query.Refunded, query.First, query.Last,
		}
		querytest.Run(t, querytest.Options{Keeps: keeps}, func(t *testing.T, rows []query.Row) query.Source {
			fresh := "sqlite:" + filepath.Join(t.TempDir(), "history.db")
			if !strings.HasPrefix(url, "sqlite:") {
				fresh = freshPostgres(t)
			}
			s := open(t, fresh)
			var batch usage.Batch
			for i, r := range rows {
				minute := r.First / 60
				if minute == 0 {
					minute = noon
				}
				batch.Records = append(batch.Records, usage.Record{
					Key:    usage.Key{Token: r.Token, Minute: minute},
					Totals: usage.Totals{Admitted: r.Ops, Rejected: r.Rejected, Refunded: r.Refunded, Last: r.Last},
				})
				after, err := json.Marshal(map[string]any{"policy": r.Policy, "owner": r.Owner, "status": r.Status, "labels": r.Labels})
				if err != nil {
					t.Fatal(err)
				}
				batch.Events = append(batch.Events, usage.Event{ID: fmt.Sprint(i), Token: r.Token, At: 1, Kind: "token.changed", After: after})
			}
			if err := s.Ingest(context.Background(), batch); err != nil {
				t.Fatal(err)
			}
			return s
		})
	})
}

// Events that come late, again or in another order leave the same attributes.
func TestTheLatestEventSaysWhatATokenIs(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx, s := context.Background(), open(t, url)
		events := []usage.Event{
			event(1, "a", "owner.set", `{"owner":"acme","labels":["x","a","x"]}`),
			event(2, "a", "policy.assigned", `{"policy":"free"}`),
			event(3, "a", "token.blocked", `{"status":"blocked","policy":"pro"}`),
			event(4, "a", "owner.set", `{"owner":null}`),
			event(5, "a", "nonsense", `{"owner":7,"labels":"x","status":[]}`),
			event(6, "a", "nonsense", `[]`),
		}
		ingest(t, s, record("a", "", noon, 1, 0))
		for _, i := range []int{3, 2, 5, 0, 1, 4, 2, 0} {
			if err := s.Ingest(ctx, usage.Batch{Events: events[i : i+1]}); err != nil {
				t.Fatal(err)
			}
		}
		page, err := s.Search(ctx, query.Query{}, at(noon))
		if err != nil || len(page.Rows) != 1 {
			t.Fatalf("%+v, %v", page, err)
		}
		got := page.Rows[0]
		if got.Policy != "pro" || got.Owner != "" || got.Status != "blocked" || strings.Join(got.Labels, " ") != "a x" {
			t.Errorf("%+v", got)
		}
	})
}
