// Sessions of franz-go: see the package sessions.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"tests/sessions"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	sessions.Main(connect)
}

type client struct {
	topic                        string
	plain, transactional, reader *kgo.Client
}

func connect(bootstrap string, login sessions.Login) (sessions.Client, error) {
	mechanism, err := mechanismOf(login)
	if err != nil {
		return nil, err
	}
	secure, err := login.TLS()
	if err != nil {
		return nil, err
	}
	open := func(suffix string, more ...kgo.Opt) *kgo.Client {
		options := append(more,
			kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
			kgo.ClientID(login.Name+suffix),
			kgo.SASL(mechanism),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		if secure != nil {
			options = append(options, kgo.DialTLSConfig(secure))
		}
		opened, openErr := kgo.NewClient(options...)
		err = errors.Join(err, openErr)
		return opened
	}
	return &client{
		topic:         login.Name,
		plain:         open(""),
		transactional: open(".transactions", kgo.TransactionalID(login.Name)),
		reader: open(".group",
			kgo.ConsumerGroup(login.Name),
			kgo.ConsumeTopics(login.Name),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		),
	}, err
}

func mechanismOf(login sessions.Login) (sasl.Mechanism, error) {
	switch login.Mechanism {
	case "PLAIN":
		return plain.Auth{User: login.User, Pass: login.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		auth := scram.Auth{User: login.User, Pass: login.Password, IsToken: login.IsToken}
		if login.Mechanism == "SCRAM-SHA-256" {
			return auth.AsSha256Mechanism(), nil
		}
		return auth.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(login.TokenFile)
			return oauth.Auth{Token: string(token)}, err
		}), nil
	}
	return nil, fmt.Errorf("unknown mechanism %s", login.Mechanism)
}

func (c *client) Send(partition int32, value string) error {
	return c.send(c.plain, partition, value)
}

func (c *client) send(with *kgo.Client, partition int32, value string) error {
	record := &kgo.Record{Topic: c.topic, Partition: partition, Value: []byte(value)}
	return with.ProduceSync(context.Background(), record).FirstErr()
}

func (c *client) Transact(isCommitted bool, values ...string) error {
	if err := c.transactional.BeginTransaction(); err != nil {
		return err
	}
	for _, value := range values {
		if err := c.send(c.transactional, sessions.Transactional, value); err != nil {
			return err
		}
	}
	return c.transactional.EndTransaction(context.Background(), kgo.TransactionEndTry(isCommitted))
}

func (c *client) Read(ctx context.Context, each func(sessions.Record) error) error {
	for {
		fetches := c.reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var lost *kgo.ErrGroupSession
		if err := fetches.Err(); err != nil && !errors.As(err, &lost) {
			return err // A lost session is reported, and the client joins again.
		}
		for _, record := range fetches.Records() {
			found := sessions.Record{Partition: record.Partition, Offset: record.Offset, Value: string(record.Value)}
			if err := each(found); err != nil {
				return err
			}
		}
	}
}

func (c *client) Close() {
	c.plain.Close()
	c.transactional.Close()
	c.reader.Close()
}
