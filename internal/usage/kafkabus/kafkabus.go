// Package kafkabus is the bus on a Kafka topic.
//
// A Kafka record carries one message (docs/records.md) as its value, keyed by the
// token, so that what is about one token stays in one partition; the header "v"
// has the message's version. Producing is idempotent with acknowledgement by all
// replicas in sync. Offsets are committed after a batch was handled, never
// before: what a consumer did not finish is delivered again.
package kafkabus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tallygate/tallygate/internal/usage"
)

// recordsPerPoll bounds one delivery.
const recordsPerPoll = 4096

// Bus publishes to a topic and consumes from it. It is safe for concurrent use;
// every Consume is a member of the group on its own. Close it.
type Bus struct {
	opts     Options
	producer *kgo.Client

	mu    sync.Mutex
	topic bool // is known to exist
}

var (
	_ usage.Publisher = (*Bus)(nil)
	_ usage.Consumer  = (*Bus)(nil)
)

// New returns a bus without connecting to it.
func New(opts Options) (*Bus, error) {
	opts = opts.withDefaults()
	if len(opts.Brokers) == 0 {
		return nil, errors.New("kafka: no broker is named; give at least one host:port")
	}
	producer, err := kgo.NewClient(append(opts.client(),
		kgo.DefaultProduceTopic(opts.Topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		// A batch of the tracker is complete when it comes: nothing to wait for.
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Bus{opts: opts, producer: producer}, nil
}

// Close ends publishing. What Publish was given and has not acknowledged may or
// may not arrive.
func (b *Bus) Close() { b.producer.Close() }

// Check reports whether the brokers answer and the topic exists, and creates the
// topic if it does not.
func (b *Bus) Check(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.topic {
		return nil
	}
	if err := b.ensureTopic(ctx); err != nil {
		return err
	}
	b.topic = true
	return nil
}

func (b *Bus) ensureTopic(ctx context.Context) error {
	admin := kadm.NewClient(b.producer)
	topics, err := admin.ListTopics(ctx, b.opts.Topic)
	if err != nil {
		return fmt.Errorf("kafka: look for topic %s: %w", b.opts.Topic, err)
	}
	if topics.Has(b.opts.Topic) {
		return nil
	}
	setting := func(s string) *string { return &s }
	created, err := admin.CreateTopic(ctx, b.opts.Partitions, b.opts.Replication, map[string]*string{
		"cleanup.policy":   setting("delete"),
		"retention.ms":     setting(strconv.FormatInt(b.opts.Retention.Milliseconds(), 10)),
		"compression.type": setting("producer"),
	}, b.opts.Topic)
	if err == nil {
		err = created.Err
	}
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists): // another one was quicker
		return nil
	case err != nil:
		return fmt.Errorf("kafka: create topic %s: %w; create it, or allow this user to", b.opts.Topic, err)
	}
	b.opts.Log.Info("created the topic", "topic", b.opts.Topic, "partitions", b.opts.Partitions)
	return nil
}

var versionHeader = []kgo.RecordHeader{{Key: "v", Value: fmt.Appendf(nil, "%d.%d", usage.Major, usage.Minor)}}

// Publish implements usage.Publisher.
func (b *Bus) Publish(ctx context.Context, batch usage.Batch) error {
	if err := b.Check(ctx); err != nil {
		return err
	}
	records := make([]*kgo.Record, 0, len(batch.Records)+len(batch.Events))
	for _, r := range batch.Records {
		records = append(records, &kgo.Record{Key: []byte(r.Token), Value: usage.AppendRecord(nil, r), Headers: versionHeader})
	}
	for _, e := range batch.Events {
		value, err := usage.AppendEvent(nil, e)
		if err != nil {
			return err
		}
		records = append(records, &kgo.Record{Key: []byte(e.Token), Value: value, Headers: versionHeader})
	}
	if err := b.produce(ctx, records); err != nil {
		b.forget(err)
		return fmt.Errorf("kafka: produce %d records to topic %s: %w", len(records), b.opts.Topic, err)
	}
	return nil
}

// produce waits for the records' acknowledgement, at most until ctx ends. An
// idempotent producer cannot take back what it has sent and got no answer to, so
// the client goes on trying after that. Hence it is given more only when it is
// done with what it has: its memory stays bounded, however long Kafka is away.
func (b *Bus) produce(ctx context.Context, records []*kgo.Record) error {
	if err := b.producer.Flush(ctx); err != nil {
		return err
	}
	acknowledged := make(chan error, len(records))
	for _, r := range records {
		b.producer.Produce(ctx, r, func(_ *kgo.Record, err error) { acknowledged <- err })
	}
	var failed error
	for range records {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-acknowledged:
			if failed == nil {
				failed = err
			}
		}
	}
	return failed
}

// forget makes the next Check look for the topic again when it is gone.
func (b *Bus) forget(err error) {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		b.mu.Lock()
		b.topic = false
		b.mu.Unlock()
	}
}

// Consume implements usage.Consumer. While Kafka is away it keeps trying. It
// fails when handle does, or on a message of a newer major version; a message
// that nobody can ever read is logged and passed over.
func (b *Bus) Consume(ctx context.Context, handle func(context.Context, usage.Batch) error) error {
	// A client of its own: its position is where the group's commits are, so what
	// an earlier Consume did not finish comes again.
	client, err := kgo.NewClient(append(b.opts.client(),
		kgo.ConsumerGroup(b.opts.Group),
		kgo.ConsumeTopics(b.opts.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		// No partition changes hands between a poll and its commit.
		kgo.BlockRebalanceOnPoll(),
		// There may be no topic yet.
		kgo.UnknownTopicRetries(-1),
	)...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer client.CloseAllowingRebalance()
	away := false
	for {
		fetches := client.PollRecords(ctx, recordsPerPoll)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil && !away {
			b.opts.Log.Warn("the consumer cannot read from Kafka; it keeps trying", "topic", b.opts.Topic, "error", err)
		}
		away = fetches.Err() != nil
		if err := b.take(ctx, client, fetches.Records(), handle); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		client.AllowRebalance()
		if away {
			select {
			case <-ctx.Done():
			case <-time.After(250 * time.Millisecond):
			}
		}
	}
}

// take handles records as one batch and commits their offsets.
func (b *Bus) take(ctx context.Context, client *kgo.Client, records []*kgo.Record, handle func(context.Context, usage.Batch) error) error {
	if len(records) == 0 {
		return nil
	}
	var batch usage.Batch
	for _, r := range records {
		err := usage.Decode(r.Value, &batch)
		switch {
		case errors.Is(err, usage.ErrVersion):
			return fmt.Errorf("kafka: topic %s, partition %d, offset %d: %w", r.Topic, r.Partition, r.Offset, err)
		case err != nil:
			b.opts.Log.Error("passed over a message that cannot be read",
				"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err)
		}
	}
	if len(batch.Records)+len(batch.Events) > 0 {
		if err := handle(ctx, batch); err != nil {
			return fmt.Errorf("handle a batch of %d records and %d events: %w", len(batch.Records), len(batch.Events), err)
		}
	}
	// It was handled: commit even if ctx has just ended.
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := client.CommitRecords(commit, records...); err != nil {
		// The group's next commit covers these offsets, or they come again.
		b.opts.Log.Warn("could not commit offsets; what was handled may be delivered again", "topic", b.opts.Topic, "error", err)
	}
	return nil
}
