"""Keras 3 on torch: digits by a small network, trained by `model.fit` as it is. A step is an epoch.

stagetree run examples/keras/study.yaml --trainers examples/keras/train.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
from sklearn.datasets import load_digits

import stagetree
from stagetree.integrations import keras_loop

run = stagetree.attach("keras", hp={"lr": 0.1}, steps=6, eval_every=2, width=32)
keras.utils.set_random_seed(run.seed)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(run.args["width"], activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
keras_loop.keras(run, model, x[:600], y[:600], validation_data=(x[600:900], y[600:900]), batch_size=64)
