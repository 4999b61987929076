package tracker_test

import (
	"context"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// set writes settings and an event as an administrator's change does; hint says
// whether the hint is heard.
func (b *bench) set(id token.ID, event string, hint bool, conf ...any) {
	b.t.Helper()
	ctx := context.Background()
	tag := token.Tag(string(ns), id)
	message, err := usage.AppendEvent(nil, usage.Event{ID: event, Token: id, Kind: "policy.assigned"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.client.Del(ctx, "conf:"+tag)
	if len(conf) > 0 {
		b.client.HSet(ctx, "conf:"+tag, conf...)
	}
	b.client.RPush(ctx, "events:"+tag, message)
	if hint {
		b.client.Publish(ctx, string(ns)+":conf", string(id))
	}
}

func TestForwarderEmptiesTheOutboxAndMirrorsSettings(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	b.set("a:b", "before", false, "policy", "pro", "owner", "acme", "quota:minute", 5)
	publisher := &broken{Publisher: localbus.New(0)}
	bus := publisher.Publisher.(*localbus.Bus)
	account := history(t, bus)
	forwarder := tracker.NewForwarder(b.client, publisher, tracker.ForwarderOptions{Log: quiet, ScanEvery: 50 * time.Millisecond})
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- forwarder.Run(run) }()
	have := func(ids ...string) {
		t.Helper()
		account.Until(t, func(_ map[usage.Key]usage.Totals, events map[string]usage.Event) bool {
			for _, id := range ids {
				if events[id].ID == "" {
					return false
				}
			}
			return true
		})
	}
	have("before")
	hash := b.client.HGetAll(ctx, metadata.Key(string(ns), "a:b")).Val()
	if hash["policy"] != "pro" || hash["owner"] != "acme" || hash["token"] != "a:b" || hash["ops"] != "0" || hash["quota:minute"] != "" {
		t.Errorf("metadata %v", hash)
	}
	publisher.down.Store(true)
	b.set("a:b", "during", true, "owner", "acme")
	tries := publisher.hits.Load()
	until(t, "it was tried", func() bool { return publisher.hits.Load() > tries })
	publisher.down.Store(false)
	b.set("c", "after", true)
	b.set("d", "unheard", false)
	have("before", "during", "after", "unheard")
	until(t, "the outboxes are empty", func() bool { return len(b.client.Keys(ctx, "events:*").Val()) == 0 })
	if hash := b.client.HGetAll(ctx, metadata.Key(string(ns), "a:b")).Val(); hash["policy"] != "" || hash["owner"] != "acme" {
		t.Errorf("metadata after the policy was taken back: %v", hash)
	}
	if n := b.client.Exists(ctx, metadata.Key(string(ns), "d")).Val(); n != 0 {
		t.Error("a token with nothing set and no use got metadata")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
