package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/credential"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// site is an admin API, its credentials, and the enforcer that it steers.
type site struct {
	handler                   http.Handler
	enforcer                  *enforcer.Enforcer
	reader, writer, yesterday string
}

func newSite(t *testing.T, store enforcer.Store, settings conf.Store) *site {
	t.Helper()
	var digests [3]string
	s := &site{}
	for i, token := range []*string{&s.reader, &s.writer, &s.yesterday} {
		*token, digests[i] = credential.Generate()
	}
	credentials, err := credential.New([]config.AdminCredential{
		{Name: "robin", Role: "read", SHA256: digests[0]},
		{Name: "kim", Role: "write", SHA256: digests[1]},
		{Name: "old", Role: "write", SHA256: digests[2], Expires: "2020-01-01T00:00:00Z"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.DefaultPolicy = "free"
	c.Policies = map[string]config.Policy{
		"free": {Limits: []config.Limit{{Name: "hour", Quota: 3, Window: time.Hour}, {Name: "search", Quota: 2, Window: time.Minute, Resources: []string{"search"}}}},
		"pro":  {Limits: []config.Limit{{Name: "hour", Quota: 1000, Window: time.Hour}}},
	}
	s.enforcer = enforcer.New(store, enforcer.Compile(c), enforcer.Options{Settings: settings})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.enforcer.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	s.handler = (&API{Credentials: credentials, Settings: settings, Enforcer: s.enforcer, Log: slog.New(slog.DiscardHandler), Now: time.Now}).Handler()
	return s
}

func (s *site) call(method, path, bearer, body string) (int, map[string]any) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	var answer map[string]any
	_ = json.NewDecoder(w.Body).Decode(&answer)
	return w.Code, answer
}

func (s *site) patch(t *testing.T, body string) map[string]any {
	t.Helper()
	status, answer := s.call("PATCH", "/v1/admin/tokens/T", s.writer, body)
	if status != 200 {
		t.Fatalf("%s: %d %v", body, status, answer)
	}
	return answer
}

func (s *site) decide(t *testing.T) enforcer.Answer {
	t.Helper()
	a, err := s.enforcer.Decide(context.Background(), enforcer.Query{Token: "T", Cost: 0})
	if err != nil || a.Err != nil {
		t.Fatal(err, a.Err)
	}
	return a
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to be")
		}
	}
}

func eachStore(t *testing.T, test func(t *testing.T, store enforcer.Store, settings conf.Store, events func() []usage.Event)) {
	t.Run("in process", func(t *testing.T) {
		bus := localbus.New(0)
		test(t, memory.New(memory.Options{}), conf.NewMemory(bus), func() []usage.Event {
			var events []usage.Event
			ctx, cancel := context.WithCancel(context.Background())
			_ = bus.Consume(ctx, func(_ context.Context, b usage.Batch) error {
				events = append(events, b.Events...)
				cancel()
				return nil
			})
			return events
		})
	})
	t.Run("Redis", func(t *testing.T) {
		client := redistest.Start(t).Client()
		store := counters.NewGroup(counters.NewStore(client, counters.Options{}), counters.GroupOptions{})
		test(t, store, conf.NewRedis(client, "api"), func() []usage.Event {
			var batch usage.Batch
			for _, message := range client.LRange(context.Background(), conf.EventsKey("api", "T"), 0, -1).Val() {
				if err := usage.Decode([]byte(message), &batch); err != nil {
					t.Fatal(err)
				}
			}
			return batch.Events
		})
	})
}

func TestWhatAnAdministratorSetsTakesEffectAndIsAudited(t *testing.T) {
	eachStore(t, func(t *testing.T, store enforcer.Store, settings conf.Store, events func() []usage.Event) {
		s := newSite(t, store, settings)
		if a := s.decide(t); a.Rule.Policy != "free" || a.Rule.Limits[0].Quota != 3 {
			t.Fatalf("before: %+v", a.Rule)
		}
		answer := s.patch(t, `{"policy":"pro","quotas":{"hour":500},"owner":"acme","labels":["tier=1","beta"],"reason":"ticket 17"}`)
		if answer["policy"] != "pro" || fmt.Sprint(answer["labels"]) != "[beta tier=1]" || answer["limits"].([]any)[0].(map[string]any)["quota"] != 500.0 {
			t.Errorf("answer: %v", answer)
		}
		eventually(t, func() bool { a := s.decide(t); return a.Rule.Policy == "pro" && a.Rule.Limits[0].Quota == 500 })

		s.patch(t, `{"status":"blocked","reason":"leaked key"}`)
		eventually(t, func() bool { a := s.decide(t); return a.Outcome() == quota.Rejected && a.Rule.Blocked })
		s.patch(t, `{"status":"active","policy":null,"quotas":{"hour":null},"owner":null,"labels":null,"reason":"solved"}`)
		eventually(t, func() bool {
			a := s.decide(t)
			return a.Rule.Policy == "free" && a.Rule.Limits[0].Quota == 3 && !a.Rule.Blocked
		})
		s.patch(t, `{"status":"active","reason":"changes nothing"}`)

		var told []string
		for _, e := range events() {
			told = append(told, fmt.Sprintf("%s %s→%s %s: %s", e.Kind, e.Before, e.After, e.Actor, e.Reason))
			if e.ID == "" || e.At == 0 || e.Token != "T" {
				t.Errorf("event %+v", e)
			}
		}
		want := []string{
			`policy.assigned {"policy":""}→{"policy":"pro"} kim: ticket 17`,
			`owner.set {"owner":""}→{"owner":"acme"} kim: ticket 17`,
			`labels.set {"labels":[]}→{"labels":["beta","tier=1"]} kim: ticket 17`,
			`limit.overridden {"limit":"hour","quota":null}→{"limit":"hour","quota":500} kim: ticket 17`,
			`token.blocked {"status":"active"}→{"status":"blocked"} kim: leaked key`,
			`policy.assigned {"policy":"pro"}→{"policy":""} kim: solved`,
			`token.unblocked {"status":"blocked"}→{"status":"active"} kim: solved`,
			`owner.set {"owner":"acme"}→{"owner":""} kim: solved`,
			`labels.set {"labels":["beta","tier=1"]}→{"labels":[]} kim: solved`,
			`limit.overridden {"limit":"hour","quota":500}→{"limit":"hour","quota":null} kim: solved`,
		}
		if strings.Join(told, "\n") != strings.Join(want, "\n") {
			t.Errorf("events:\n%s", strings.Join(told, "\n"))
		}
	})
}

func TestTheLiveStateShowsEveryLimit(t *testing.T) {
	eachStore(t, func(t *testing.T, store enforcer.Store, settings conf.Store, _ func() []usage.Event) {
		s := newSite(t, store, settings)
		if _, err := s.enforcer.Decide(context.Background(), enforcer.Query{Token: "T", Resource: "search", Cost: 2}); err != nil {
			t.Fatal(err)
		}
		status, answer := s.call("GET", "/v1/admin/tokens/T", s.reader, "")
		limits := answer["limits"].([]any)
		if status != 200 || len(limits) != 2 || limits[0].(map[string]any)["remaining"] != 1.0 || limits[1].(map[string]any)["remaining"] != 0.0 {
			t.Errorf("%d %v", status, answer)
		}
	})
}

func TestOnlyTheRightCredentialsOpenTheAPI(t *testing.T) {
	s := newSite(t, memory.New(memory.Options{}), conf.NewMemory(localbus.New(0)))
	for name, c := range map[string]struct {
		method, bearer string
		want           int
	}{
		"none":               {"GET", "", 401},
		"wrong":              {"GET", "tg_wrong", 401},
		"expired":            {"GET", s.yesterday, 401},
		"expired, to change": {"PATCH", s.yesterday, 401},
		"none, to change":    {"PATCH", "", 401},
		"reader":             {"GET", s.reader, 200},
		"reader, to change":  {"PATCH", s.reader, 403},
		"writer":             {"GET", s.writer, 200},
		"writer, to change":  {"PATCH", s.writer, 200},
	} {
		if status, _ := s.call(c.method, "/v1/admin/tokens/T", c.bearer, `{"reason":"test"}`); status != c.want {
			t.Errorf("%s: %d, want %d", name, status, c.want)
		}
	}
}

func TestBadChangesAreRefusedWithFieldAndRemedy(t *testing.T) {
	s := newSite(t, memory.New(memory.Options{}), conf.NewMemory(localbus.New(0)))
	for body, field := range map[string]string{
		``:                                                "body",
		`[]`:                                              "body",
		`{"reason":"x"} {}`:                               "body",
		`{"policy":"pro"}`:                                "reason",
		`{"policy":"gold","reason":"x"}`:                  "policy",
		`{"policy":5,"reason":"x"}`:                       "policy",
		`{"status":"asleep","reason":"x"}`:                "status",
		`{"owner":" x","reason":"x"}`:                     "owner",
		`{"owner":"a\nb","reason":"x"}`:                   "owner",
		`{"labels":[""],"reason":"x"}`:                    "labels",
		`{"labels":"a","reason":"x"}`:                     "labels",
		`{"quotas":{"day":5},"reason":"x"}`:               "quotas",
		`{"quotas":{"hour":-5},"reason":"x"}`:             "quotas",
		`{"quotas":{"hour":1.5},"reason":"x"}`:            "quotas",
		`{"colour":"red","reason":"x"}`:                   "colour",
		`{"reason":"` + strings.Repeat("x", 2000) + `"}`:  "reason",
		`{"reason":"` + strings.Repeat("x", 70000) + `"}`: "body",
	} {
		status, answer := s.call("PATCH", "/v1/admin/tokens/T", s.writer, body)
		if status != 400 || answer["field"] != field {
			t.Errorf("%.50s: %d %v", body, status, answer)
		}
	}
	if status, _ := s.call("GET", "/v1/admin/tokens/"+strings.Repeat("x", 300), s.reader, ""); status != 400 {
		t.Errorf("a token that is too long: %d", status)
	}
}

func TestConcurrentChangesOfOneTokenAllHappen(t *testing.T) {
	eachStore(t, func(t *testing.T, store enforcer.Store, settings conf.Store, events func() []usage.Event) {
		s := newSite(t, store, settings)
		done := make(chan int)
		for i := range 4 {
			go func() {
				status, _ := s.call("PATCH", "/v1/admin/tokens/T", s.writer, fmt.Sprintf(`{"owner":"owner %d","reason":"x"}`, i))
				done <- status
			}()
		}
		for range 4 {
			if status := <-done; status != 200 {
				t.Errorf("status %d", status)
			}
		}
		all := events()
		if len(all) != 4 {
			t.Fatalf("%d events", len(all))
		}
		for i := 1; i < len(all); i++ { // each began where the one before ended
			if string(all[i].Before) != string(all[i-1].After) {
				t.Errorf("event %d begins with %s, the one before ended with %s", i, all[i].Before, all[i-1].After)
			}
		}
	})
}

func FuzzChange(f *testing.F) {
	f.Add(`{"policy":"pro","quotas":{"hour":500},"reason":"ticket 17"}`)
	s := &API{Enforcer: enforcer.New(memory.New(memory.Options{}), enforcer.Compile(config.Default()), enforcer.Options{})}
	f.Fuzz(func(_ *testing.T, body string) {
		_, _ = s.decode(io.NopCloser(strings.NewReader(body)))
	})
}
