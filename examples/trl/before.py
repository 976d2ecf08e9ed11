"""Fine-tunes a small language model on questions and answers with TRL's SFTTrainer and LoRA.

The model and its tokenizer are made here, so that nothing is downloaded; a real script has `from_pretrained` instead.
"""

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["<pad>", "<eos>", "what", "is", "plus", "the", "sum", *map(str, range(40))]
vocabulary = {word: number for number, word in enumerate(words)}
tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>")


def example(number):
    a, b = number % 19, number * 7 % 20
    return {"prompt": f"what is {a} plus {b} ", "completion": f"the sum is {a + b}"}


data = Dataset.from_list([example(number) for number in range(160)])
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **sizes))

args = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=2e-3,
    lr_scheduler_type="cosine",
    max_steps=40,
    logging_steps=10,
    eval_strategy="steps",
    eval_steps=20,
    save_strategy="no",
    report_to="none",
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
)
trainer = SFTTrainer(
    model=model,
    args=args,
    train_dataset=data.select(range(128)),
    eval_dataset=data.select(range(128, 160)),
    processing_class=tokenizer,
    peft_config=LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    ),
)
trainer.train()
