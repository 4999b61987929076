package conf

import (
	"context"
	_ "embed" // change.lua
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

//go:embed change.lua
var changeSource string

var changeScript = redis.NewScript(changeSource)

// Key is where a token's settings are: hash, without TTL.
func Key(namespace string, id token.ID) string { return "conf:" + token.Tag(namespace, id) }

// EventsKey is where the events about a token wait for the tracker to forward
// them: list of messages as usage.AppendEvent writes them, oldest first, no TTL.
func EventsKey(namespace string, id token.ID) string { return "events:" + token.Tag(namespace, id) }

// Channel is where the ID of each token whose settings change is published.
func Channel(namespace string) string { return namespace + ":conf" }

// Redis is the Store in Redis, beside the counters.
type Redis struct {
	client    redis.UniversalClient
	namespace string
}

var _ Store = (*Redis)(nil)

// NewRedis returns the store of a namespace.
func NewRedis(client redis.UniversalClient, namespace string) *Redis {
	return &Redis{client, namespace}
}

// Get implements Store, in one round trip per server.
func (r *Redis) Get(ctx context.Context, ids []token.ID) ([]Conf, error) {
	commands := make([]*redis.MapStringStringCmd, len(ids))
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			commands[i] = p.HGetAll(ctx, Key(r.namespace, id))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the settings of %d tokens: %w", len(ids), err)
	}
	confs := make([]Conf, len(ids))
	for i, command := range commands {
		confs[i] = parse(command.Val())
	}
	return confs, nil
}

// attempts bounds how often Apply starts over because others were faster.
const attempts = 10

// Apply implements Store.
func (r *Redis) Apply(ctx context.Context, id token.ID, change Change) (Conf, error) {
	for range attempts {
		fields, err := r.client.HGetAll(ctx, Key(r.namespace, id)).Result()
		if err != nil {
			return Conf{}, fmt.Errorf("read the token's settings: %w", err)
		}
		before := parse(fields)
		after, events := before.apply(id, change)
		if len(events) == 0 {
			return before, nil
		}
		done, err := r.commit(ctx, id, fields[fieldVersion], before, after, events)
		if err != nil {
			return Conf{}, fmt.Errorf("change the token's settings: %w", err)
		}
		if done {
			return after, nil
		}
	}
	return Conf{}, ErrConflict
}

func (r *Redis) commit(ctx context.Context, id token.ID, version string, before, after Conf, events []usage.Event) (bool, error) {
	if version == "" {
		version = "0"
	}
	args := []any{version, Channel(r.namespace), string(id), len(events)}
	for _, event := range events {
		message, err := usage.AppendEvent(nil, event)
		if err != nil {
			return false, err
		}
		args = append(args, message)
	}
	was, is := before.fields(), after.fields()
	fields := maps.Clone(is)
	for name := range was {
		if _, kept := is[name]; !kept {
			fields[name] = ""
		}
	}
	args = append(args, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		args = append(args, name, fields[name])
	}
	return changeScript.Run(ctx, r.client, []string{Key(r.namespace, id), EventsKey(r.namespace, id)}, args...).Bool()
}

// Watch implements Store. A message may be lost while the connection is; lost is
// called after every reconnect.
func (r *Redis) Watch(ctx context.Context, changed func(token.ID), lost func()) {
	subscription := r.client.Subscribe(ctx, Channel(r.namespace))
	defer subscription.Close()
	messages := subscription.ChannelWithSubscriptions()
	for {
		select {
		case <-ctx.Done():
			return
		case message, ok := <-messages:
			if !ok {
				return
			}
			switch m := message.(type) {
			case *redis.Subscription: // the first one, and one after each reconnect
				lost()
			case *redis.Message:
				changed(token.ID(m.Payload))
			}
		}
	}
}
