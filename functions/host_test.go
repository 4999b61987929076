package functions_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/dop251/goja"
	"github.com/redis/go-redis/v9"
)

// host runs a library as Redis' triggers and functions do, on a real Redis: it
// takes strings and ArrayBuffers only, returns integers as BigInt and nil as null,
// throws errors, and makes a client useless once its call has ended. Not safe for
// concurrent use, like the real one, which runs on Redis' own thread.
type host struct {
	t        *testing.T
	vm       *goja.Runtime
	client   *redis.Client
	triggers []trigger
}

type trigger struct {
	prefix   string
	callback goja.Callable
}

// newHost loads source with a configuration.
func newHost(t *testing.T, client *redis.Client, source string, config map[string]any) *host {
	t.Helper()
	first, rest, _ := strings.Cut(source, "\n")
	if first != "#!js api_version=1.0 name=limiter" {
		t.Fatalf("Redis would refuse the first line %q", first)
	}
	h := &host{t: t, vm: goja.New(), client: client}
	api := map[string]any{
		"registerKeySpaceTrigger": func(name, prefix string, callback goja.Callable, options map[string]any) {
			for option := range options {
				if option != "description" && option != "onTriggerFired" {
					panic(h.vm.NewTypeError("unknown option %s", option))
				}
			}
			h.triggers = append(h.triggers, trigger{prefix, callback})
		},
		"log": func(message string) { t.Log(message) },
	}
	if config != nil {
		api["config"] = config
	}
	if err := h.vm.Set("redis", api); err != nil {
		t.Fatal(err)
	}
	if _, err := h.vm.RunScript("limiter.js", "\n"+rest); err != nil { // the line numbers stay
		t.Fatal(err)
	}
	return h
}

// fire tells the library of an event and returns what it threw.
func (h *host) fire(event, key string) error {
	h.t.Helper()
	ended := false
	defer func() { ended = true }()
	client := map[string]any{"call": func(call goja.FunctionCall) goja.Value {
		if ended {
			panic(h.vm.NewTypeError("used an invalid client"))
		}
		args := make([]any, len(call.Arguments))
		for i, argument := range call.Arguments {
			switch v := argument.Export().(type) {
			case string:
				args[i] = v
			case goja.ArrayBuffer:
				args[i] = v.Bytes()
			default:
				panic(h.vm.NewTypeError("argument %d of %v is a %T, neither string nor ArrayBuffer", i, call.Arguments[0], v))
			}
		}
		reply, err := h.client.Do(context.Background(), args...).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			panic(h.vm.NewGoError(err))
		}
		return h.value(reply)
	}}
	data := map[string]any{"event": event, "key": key, "key_raw": h.vm.NewArrayBuffer([]byte(key))}
	for _, trigger := range h.triggers {
		if strings.HasPrefix(key, trigger.prefix) {
			if _, err := trigger.callback(goja.Undefined(), h.vm.ToValue(client), h.vm.ToValue(data)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *host) value(reply any) goja.Value {
	switch v := reply.(type) {
	case nil:
		return goja.Null()
	case int64:
		return h.vm.ToValue(big.NewInt(v))
	case string:
		return h.vm.ToValue(v)
	case []any:
		array := make([]any, len(v))
		for i, element := range v {
			array[i] = h.value(element)
		}
		return h.vm.NewArray(array...)
	}
	panic(fmt.Sprintf("a reply of type %T is not known to the host", reply))
}
