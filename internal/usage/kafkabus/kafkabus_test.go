package kafkabus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tallygate/tallygate/internal/kafkatest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/bustest"
	"github.com/tallygate/tallygate/internal/usage/kafkabus"
)

func open(t *testing.T, broker *kafkatest.Broker, o kafkabus.Options) *kafkabus.Bus {
	t.Helper()
	o.Brokers, o.Client = []string{broker.Addr}, append(kafkatest.Impatient(), o.Client...)
	o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	if o.Partitions == 0 {
		o.Partitions = 3
	}
	bus, err := kafkabus.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bus.Close)
	return bus
}

func TestConformance(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	n := 0
	bustest.Run(t, func(t *testing.T) bustest.Bus {
		n++
		o := kafkabus.Options{Topic: fmt.Sprint("usage", n), Group: fmt.Sprint("group", n)}
		return bustest.Bus{
			Publisher: open(t, broker, o),
			Consumer:  func(t *testing.T) usage.Consumer { return open(t, broker, o) },
		}
	})
}

func one(id token.ID, admitted int64) usage.Batch {
	return usage.Batch{Records: []usage.Record{{Key: usage.Key{Token: id, Minute: 1}, Totals: usage.Totals{Admitted: admitted}}}}
}

func has(n int) func(map[usage.Key]usage.Totals, map[string]usage.Event) bool {
	return func(r map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(r) == n }
}

// Brokers that refuse, answer late, or lose the acknowledgement of what they
// have taken: the batch arrives, perhaps more than once.
func TestPublishSurvivesBrokenAcknowledgements(t *testing.T) {
	for name, fault := range map[string]kfake.Fault{
		"refused":              {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 3},
		"not enough replicas":  {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: 3},
		"acknowledgement lost": {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 2},
		"appended, then error": {Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend, Count: 2},
	} {
		t.Run(name, func(t *testing.T) {
			broker := kafkatest.Start(t, kfake.NumBrokers(1))
			bus := open(t, broker, kafkabus.Options{})
			ctx, cancel := context.WithTimeout(context.Background(), bustest.Limit)
			defer cancel()
			if err := bus.Check(ctx); err != nil {
				t.Fatal(err)
			}
			broker.Fault(fault)
			if err := bus.Publish(ctx, one("t", 3)); err != nil {
				t.Fatal(err)
			}
			account := bustest.NewAccount()
			bustest.Consume(t, bus, account.Handle)
			account.Until(t, has(1))
		})
	}
}

// The broker is away: Publish says so in time, nothing is lost, and the consumer
// goes on by itself when it is back.
func TestBrokerAwayAndBack(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	bus := open(t, broker, kafkabus.Options{})
	ctx := context.Background()
	account := bustest.NewAccount()
	bustest.Consume(t, open(t, broker, kafkabus.Options{}), account.Handle)
	if err := bus.Publish(ctx, one("before", 1)); err != nil {
		t.Fatal(err)
	}
	account.Until(t, has(1))
	broker.Stop()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := bus.Publish(short, one("during", 1)); err == nil {
		t.Error("Publish to a broker that is away succeeded")
	}
	broker.Start()
	for _, id := range []token.ID{"during", "after"} {
		again, cancel := context.WithTimeout(ctx, bustest.Limit)
		if err := bus.Publish(again, one(id, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	account.Until(t, has(3))
}

func TestTopicIsCreatedWithItsSettings(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	bus := open(t, broker, kafkabus.Options{Topic: "u", Partitions: 5, Retention: time.Hour})
	if err := bus.Publish(context.Background(), one("t", 1)); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(context.Background(), "u")
	if err != nil || len(topics["u"].Partitions) != 5 {
		t.Errorf("%v, %v", topics, err)
	}
	configs, err := admin.DescribeTopicConfigs(context.Background(), "u")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs[0].Configs {
		if c.Key == "retention.ms" && c.MaybeValue() != "3600000" {
			t.Errorf("retention.ms = %s", c.MaybeValue())
		}
	}
}

// What is about one token is in one partition and says its version in a header.
func TestRecordsAreKeyedByToken(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	bus := open(t, broker, kafkabus.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), bustest.Limit)
	defer cancel()
	for i := range int64(5) {
		batch := one("t", i)
		batch.Events = []usage.Event{{ID: fmt.Sprint(i), Token: "t", Kind: "a.b"}}
		if err := bus.Publish(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr), kgo.ConsumeTopics("tallygate.usage"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	partitions, n := map[int32]bool{}, 0
	for n < 10 && ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			n++
			partitions[r.Partition] = true
			if string(r.Key) != "t" || len(r.Headers) != 1 || string(r.Headers[0].Value) != "1.0" {
				t.Errorf("key %q, headers %v", r.Key, r.Headers)
			}
		})
	}
	if len(partitions) != 1 {
		t.Errorf("in partitions %v", partitions)
	}
}

func TestConsumerStopsAtANewerMajorVersionAndPassesOverRubbish(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	bus := open(t, broker, kafkabus.Options{Partitions: 1})
	ctx, cancel := context.WithTimeout(context.Background(), bustest.Limit)
	defer cancel()
	if err := bus.Check(ctx); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr), kgo.DefaultProduceTopic("tallygate.usage"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, message := range []string{"rubbish", `{"v":"2.0"}`} {
		if err := client.ProduceSync(ctx, kgo.StringRecord(message)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	err = bus.Consume(ctx, func(context.Context, usage.Batch) error { return nil })
	if !errors.Is(err, usage.ErrVersion) {
		t.Errorf("Consume = %v", err)
	}
}

func TestSASL(t *testing.T) {
	broker := kafkatest.Start(t, kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "tally", "s e/c@ret"))
	for password, works := range map[string]bool{"s%20e%2Fc%40ret": true, "wrong": false} {
		o, err := kafkabus.Parse("kafka://tally:" + password + "@" + broker.Addr)
		if err != nil {
			t.Fatal(err)
		}
		bus := open(t, broker, o)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = bus.Publish(ctx, one("t", 1))
		cancel()
		if works != (err == nil) {
			t.Errorf("password %q: %v", password, err)
		}
		if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestParse(t *testing.T) {
	o, err := kafkabus.Parse("kafka+tls://u:p@a:1,b/topic?sasl=plain")
	if err != nil || fmt.Sprint(o.Brokers) != "[a:1 b:9092]" || o.Topic != "topic" || o.TLS == nil || o.SASL.Name() != "PLAIN" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := kafkabus.Parse("kafka://a"); err != nil || fmt.Sprint(o.Brokers) != "[a:9092]" || o.SASL != nil || o.TLS != nil {
		t.Errorf("%+v, %v", o, err)
	}
	for _, text := range []string{
		"", "redis://a", "kafka://", "kafka://a,", "kafka://u:secret@a?sasl=plain", "kafka://a?sasl=plain",
		"kafka://u:secret@a?sasl=gssapi", "kafka://u:sec%ret@a", "kafka://u:secret@a?ssl=on",
	} {
		_, err := kafkabus.Parse(text)
		if !errors.Is(err, kafkabus.ErrURL) {
			t.Errorf("Parse(%q) = %v", text, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("Parse shows the password: %v", err)
		}
	}
}
