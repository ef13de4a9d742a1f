// Produces records with franz-go until a file is there, and prints how many were acknowledged. Makes
// another file when the client has to bootstrap anew (KIP-1242). Without a user it does not log in.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	if len(os.Args) != 7 {
		fmt.Fprintln(os.Stderr, "usage: produce BOOTSTRAP USER PASSWORD TOPIC UNTIL REBOOTSTRAPPED")
		os.Exit(2)
	}
	bootstrap, topic, until, rebootstrapped := os.Args[1], os.Args[4], os.Args[5], os.Args[6]
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.OnRebootstrapRequired(func() ([]string, error) {
			return []string{bootstrap}, os.WriteFile(rebootstrapped, nil, 0o600)
		}),
	}
	if login := (scram.Auth{User: os.Args[2], Pass: os.Args[3]}); login.User != "" {
		options = append(options, kgo.SASL(login.AsSha256Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	defer client.Close()
	producer := &producer{client: client, topic: topic}
	for {
		if _, err := os.Stat(until); err == nil {
			break
		}
		producer.send(&kgo.Record{Topic: topic, Value: []byte("x")})
		producer.sendRefused()
		time.Sleep(2 * time.Millisecond)
	}
	producer.flush()
	for producer.sendRefused() {
		producer.flush()
	}
	fmt.Println(producer.acknowledged.Load())
}

type producer struct {
	client       *kgo.Client
	topic        string
	acknowledged atomic.Int64
	lock         sync.Mutex
	refused      []*kgo.Record
}

func (p *producer) send(record *kgo.Record) {
	p.client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
		if errors.Is(err, kerr.UnknownTopicID) {
			p.lock.Lock()
			defer p.lock.Unlock()
			p.refused = append(p.refused, record)
			return
		}
		fail(err)
		p.acknowledged.Add(1)
	})
}

// sendRefused sends again what was refused because the topic has another id than it had, as that of
// another cluster has. The client leaves it to the application whether that is the same topic
// ("Topic recreation" in its README).
func (p *producer) sendRefused() bool {
	refused := p.take()
	if len(refused) == 0 {
		return false
	}
	p.flush() // purging fails what is under way
	p.client.PurgeTopicsFromProducing(p.topic)
	for _, record := range append(refused, p.take()...) {
		p.send(&kgo.Record{Topic: p.topic, Value: record.Value})
	}
	return true
}

func (p *producer) take() []*kgo.Record {
	p.lock.Lock()
	defer p.lock.Unlock()
	refused := p.refused
	p.refused = nil
	return refused
}

func (p *producer) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fail(p.client.Flush(ctx))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
